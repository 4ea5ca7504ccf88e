// Matrix product for many rows on wgmma (formula, order of the sums: linear.cuh), with the bits of linear_few.cu where
// wgmma adds up 16 columns as mma does (benchmarks/cuda_chain.py checks it).
//
// The weights are the left operand: sums are [weight rows][rows of x]. A warpgroup (four warps) has 64 weight rows. K is
// read in stages of 64 columns, STAGES of them under way. One more warpgroup requests them: the weights in pieces of 16
// bytes, the first ones before the wait for the kernel that makes x, and x, which is stored in tiles (tiles.cuh), with one
// bulk copy. The others read their weights from shared memory into registers; the tensor cores read x there.
//
// Where there are too few tiles to fill the GPU, a cluster of four blocks shares a tile: each takes a quarter of K, and
// the quarters meet through distributed shared memory. Otherwise one block goes through all four quarters. Up to 64
// rows, the sums of a short segment are added while the next segment's products run.
//
// Defines: INPUTS, SEGMENTS, ROWS (32, 64 or 128; 16 in tests), WARPGROUPS (with weights), CLUSTER (1 or 4), STAGES, BLOCKS (at a
// time on a multiprocessor), EPILOGUE, FP8. Grid: outputs / OUTPUTS_OF_BLOCK * CLUSTER, rows / ROWS rounded up.
// x_stride: elements from one 64 columns to the next.
#include "linear.cuh"
#define COLUMNS (WARPGROUPS * 64)
#include "operand.cuh"
#include "finish_tile.cuh"

constexpr int CONSUMERS = WARPGROUPS * 128, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int REGISTERS = 65536 / (BLOCKS * THREADS) / 8 * 8, PRODUCER_REGISTERS = 40;
constexpr int REGISTERS_LEFT = (REGISTERS * (WARPGROUPS + 1) - PRODUCER_REGISTERS) / WARPGROUPS / 8 * 8;
constexpr int CONSUMER_REGISTERS = REGISTERS_LEFT < 240 ? REGISTERS_LEFT : 240;
constexpr int WIDTH = OPERAND_WIDTH;  // columns of K in a stage
constexpr int X_BYTES = ROWS * OPERAND_ROW_BYTES, WEIGHT_ROW_BYTES = WIDTH * WEIGHT_BYTES;
constexpr int STAGE_BYTES = X_BYTES + COLUMNS * WEIGHT_ROW_BYTES;
constexpr int WEIGHT_PIECES = WEIGHT_ROW_BYTES / 16, ROWS_OF_COPY = PRODUCERS / WEIGHT_PIECES;
constexpr int STAGES_OF_SEGMENT = SEGMENT / WIDTH;
constexpr int COUNT = QUARTERS * SEGMENTS_OF_QUARTER * STAGES_OF_SEGMENT;
constexpr int SUMS = ROWS / 2;           // of a thread
constexpr int SUM_STRIDE = COLUMNS + 4;  // floats from row to row: a warp's stores are in different banks
constexpr bool SMALL = ROWS <= 64;       // there are registers for a second segment, and for the sum of the quarters
constexpr int BUFFERS = SMALL && STAGES_OF_SEGMENT <= 2 ? 2 : 1;  // segments whose sums are under way
// Products may be under way only inside of a turn of the loop; else ptxas would run them one by one.
constexpr int UNROLLED = BUFFERS == 2 ? SEGMENTS_OF_QUARTER : 1;  // segments
constexpr int STAGES_OF_TURN = UNROLLED * STAGES_OF_SEGMENT, LAST = (UNROLLED - 1) % BUFFERS;
constexpr bool APART = QUARTERS > 1 && !SMALL;  // the sums of the quarters so far are in shared memory, beside stages
constexpr int SUMS_AT = APART ? STAGES * STAGE_BYTES : 0;
constexpr int SUM_BYTES = ROWS * SUM_STRIDE * 4, END = SUMS_AT + SUM_BYTES;
constexpr int ARRIVALS_AT = END > STAGES * STAGE_BYTES ? END : STAGES * STAGE_BYTES;
constexpr int EMPTY = 1;  // the first of STAGES barriers
static_assert(SEGMENT % WIDTH == 0 && STAGES_OF_TURN % 2 == 0, "whole stages; two sets of weights in turn");
static_assert(EMPTY + STAGES <= TILE_BARRIER, "barriers are distinct");

FUNCTION u64* arrival_of(int slot) { return (u64*)(shared_memory() + ARRIVALS_AT) + slot; }
// With FP8, the 64 bytes of two rows are all banks: eight lanes have no conflict as it is.
FUNCTION int weight_place(int row, int piece) {
  return FP8 ? row * WEIGHT_ROW_BYTES + piece * 16 : swizzled<128>(row, piece);
}

FUNCTION void produce(const Arguments& p, int begin, int first, int first_row) {
  const int thread = thread_index() - CONSUMERS, row = thread / WEIGHT_PIECES, piece = thread % WEIGHT_PIECES;
  const char* const weight = p.weight + (u64)begin * WEIGHT_BYTES + piece * 16;
  auto request_weights = [&](int stage) {
    char* const to = shared_memory() + stage % STAGES * STAGE_BYTES + X_BYTES + weight_place(row, piece);
    const char* const from = weight + stage * WEIGHT_ROW_BYTES;
#pragma unroll
    for (int n = 0; n < COLUMNS; n += ROWS_OF_COPY)  // a multiple of 16: a thread's rows are all gates or all ups
      copy_async(to + n * WEIGHT_ROW_BYTES, from + (u64)weight_row(first, n + row, p.outputs) * (INPUTS * WEIGHT_BYTES));
    arrive_after_copies(arrival_of(stage % STAGES));
  };
  auto request_x = [&](int stage) {
    const u16* const from = p.x + (u64)(begin / WIDTH + stage) * p.x_stride + first_row * WIDTH;
    if (thread == 0)
      copy_bulk(shared_memory() + stage % STAGES * STAGE_BYTES, from, X_BYTES, arrival_of(stage % STAGES));
  };
  constexpr int EARLY = STAGES < COUNT ? STAGES : COUNT;
#pragma unroll 1
  for (int stage = 0; stage < EARLY; stage++) request_weights(stage);
  wait_for_previous();
#pragma unroll 1
  for (int stage = 0; stage < EARLY; stage++) request_x(stage);
#pragma unroll 1
  for (int stage = EARLY; stage < COUNT; stage++) {
    sync_at(EMPTY + stage % STAGES, THREADS);
    request_x(stage);
    request_weights(stage);
  }
}

template <int COUNT_OF_SUMS>
FUNCTION void add_to(float (&to)[COUNT_OF_SUMS], const float (&from)[COUNT_OF_SUMS]) {
#pragma unroll
  for (int n = 0; n < COUNT_OF_SUMS; n++) to[n] += from[n];
}
template <int COUNT_OF_SUMS>
FUNCTION void clear(float (&sums)[COUNT_OF_SUMS]) {  // -0 + s is s, also if s is -0
#pragma unroll
  for (int n = 0; n < COUNT_OF_SUMS; n++) sums[n] = -0.f;
}

// A lane's weights of a stage, as the first operands of four products: rows g and g + 8 of the warp's 16, lane t's part
// of twice 32 columns.
FUNCTION void read_weights(u32 (&a)[4][4], const char* weights, int row, int t) {
  constexpr int LOADS = WEIGHT_BYTES;  // of 16 bytes, of a row
  uint4 upper[LOADS], lower[LOADS];
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    upper[i] = *(const uint4*)(weights + weight_place(row, i * 4 + t));
    lower[i] = *(const uint4*)(weights + weight_place(row + 8, i * 4 + t));
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const uint4 u = FP8 ? half_of_group(upper[0], half) : upper[FP8 ? 0 : half];
    const uint4 l = FP8 ? half_of_group(lower[0], half) : lower[FP8 ? 0 : half];
    const u32 words[8] = {u.x, l.x, u.y, l.y, u.z, l.z, u.w, l.w};
#pragma unroll
    for (int n = 0; n < 8; n++) a[half * 2 + n / 4][n % 4] = words[n];
  }
}

KERNEL_OF_BLOCKS(linear_tiled, THREADS, BLOCKS) {
  const Arguments& p = arguments;
  const int rank = block_x() % CLUSTER, first = block_x() / CLUSTER * OUTPUTS_OF_BLOCK, first_row = block_y() * ROWS;
  const int begin = rank * (INPUTS / CLUSTER);
  const int warp = thread_index() / 32, lane = thread_index() % 32, g = lane / 4, t = lane % 4;
  let_next_start();
  if (thread_index() < STAGES) make_arrival(arrival_of(thread_index()), PRODUCERS + 1);
  publish_arrivals();
  sync_block();
  if (thread_index() >= CONSUMERS) {
    give_registers_up_to<PRODUCER_REGISTERS>();
    produce(p, begin, first, first_row);
    return;
  }
  take_registers_up_to<CONSUMER_REGISTERS>();
  wait_for_previous();

  float* const sums = (float*)(shared_memory() + SUMS_AT);  // [ROWS][SUM_STRIDE]
  auto sum_at = [&](int n) -> float& {
    return sums[(n / 4 * 8 + 2 * t + n % 2) * SUM_STRIDE + warp * 16 + g + (n & 2) * 4];
  };
  int slot = 0, turn_of_slots = 0, slot_before = 0;
  u32 a[2][4][4];
  auto read_stage = [&](u32 (&to)[4][4]) {  // the next one
    wait_for_arrival(arrival_of(slot), turn_of_slots);
    read_weights(to, shared_memory() + slot * STAGE_BYTES + X_BYTES, warp * 16 + g, t);
  };
  float segment_sum[BUFFERS][SUMS], quarter_sum[SUMS], total[SUMS];
  clear(total);
  read_stage(a[0]);
  int stage = 0;
#pragma unroll 1
  for (int quarter = 0; quarter < QUARTERS; quarter++) {
    clear(quarter_sum);
#pragma unroll 1
    for (int turn = 0; turn < SEGMENTS_OF_QUARTER / UNROLLED; turn++) {
#pragma unroll
      for (int i = 0; i < STAGES_OF_TURN; i++, stage++) {
        const int buffer = i / STAGES_OF_SEGMENT % BUFFERS;
        const char* const x = shared_memory() + slot * STAGE_BYTES;
        begin_products();
#pragma unroll
        for (int n = 0; n < 4; n++)
          wgmma<ROWS>(segment_sum[buffer], a[i % 2][n][0], a[i % 2][n][1], a[i % 2][n][2], a[i % 2][n][3],
                      operand_descriptor(x, n * 16), n || i % STAGES_OF_SEGMENT);
        commit_products();
        if (i > 0) {  // the products of the stage before
          if (BUFFERS == 2 && i % STAGES_OF_SEGMENT == 0) {
            wait_for_products<1>(segment_sum[1 - buffer]);
            add_to(quarter_sum, segment_sum[1 - buffer]);
          } else {
            wait_for_products<1>();
          }
        }
        // Its memory may be filled again, if anybody waits for that.
        if (stage > 0 && stage - 1 + STAGES < COUNT) arrive_at(EMPTY + slot_before, THREADS);
        slot_before = slot;
        if (++slot == STAGES) slot = 0, turn_of_slots ^= 1;
        if (stage + 1 < COUNT) read_stage(a[(i + 1) % 2]);
      }
      wait_for_products<0>(segment_sum[LAST]);
      add_to(quarter_sum, segment_sum[LAST]);
    }
    if constexpr (SMALL) {
      add_to(total, quarter_sum);
    } else {
      if (QUARTERS == 1) sync_at(TILE_BARRIER, CONSUMERS);
#pragma unroll
      for (int n = 0; n < SUMS; n++) sum_at(n) = quarter ? sum_at(n) + quarter_sum[n] : quarter_sum[n];
    }
  }
  if constexpr (SMALL) {
    sync_at(TILE_BARRIER, CONSUMERS);  // nobody needs the stages any more
#pragma unroll
    for (int n = 0; n < SUMS; n++) sum_at(n) = total[n];
  }
  finish_tile<SUM_STRIDE, CONSUMERS>(p, sums, rank, first, first_row);
}
