// Matrix product for many rows on wgmma (formula, order of the sums: linear.cuh), with the bits of linear_few.cu where
// wgmma adds up 16 columns as mma does (benchmarks/cuda_chain.py checks it).
//
// The weights are the left operand: sums are [weight rows][rows of x]. A warpgroup (four warps) has 64 weight rows. It
// reads them from global memory into registers, RING stages of 64 columns ahead, the first ones before the wait for the
// kernel that makes x; weights never pass through shared memory. x is the right operand, [ROWS][64 columns] per stage
// in shared memory; all warpgroups of the block share it. One more warpgroup copies it there.
//
// Each stage of x is copied, its columns are brought into the order of a lane's weights (operand.cuh), and the result is
// published to the tensor cores. This warpgroup has no loads of weights under way, for which its fence might wait.
//
// CLUSTER and the meeting of the quarters are as in linear_many.cu.
//
// Defines: INPUTS, SEGMENTS, ROWS (16, 32, 64 or 128), WARPGROUPS (with weights), CLUSTER (1 or 4), RING, X_STAGES,
// EPILOGUE, FP8. Grid: outputs / OUTPUTS_OF_BLOCK * CLUSTER, rows / ROWS rounded up.
#include "linear.cuh"
#define COLUMNS (WARPGROUPS * 64)
#include "operand.cuh"
#include "tile.cuh"

constexpr int CONSUMERS = WARPGROUPS * 128, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int BLOCKS = WARPGROUPS == 1 ? 2 : 1;  // at a time on a multiprocessor
constexpr int REGISTERS = 65536 / (BLOCKS * THREADS) / 8 * 8, PRODUCER_REGISTERS = 48;
constexpr int CONSUMER_REGISTERS = (REGISTERS * (WARPGROUPS + 1) - PRODUCER_REGISTERS) / WARPGROUPS / 8 * 8;
constexpr int WIDTH = OPERAND_WIDTH;  // columns of K in a stage
constexpr int PIECES = WIDTH / 8, X_BYTES = ROWS * OPERAND_ROW_BYTES;
constexpr int STAGES_OF_SEGMENT = SEGMENT / WIDTH;
constexpr int COUNT = QUARTERS * SEGMENTS_OF_QUARTER * STAGES_OF_SEGMENT;
// Registers have no index at run time: the loop is unrolled until the ring of weights begins anew.
constexpr int UNROLLED =  // segments
    STAGES_OF_SEGMENT % RING == 0 ? 1 : 2 * STAGES_OF_SEGMENT % RING == 0 ? 2 : SEGMENTS_OF_QUARTER;
constexpr int ROWS_OF_WARP = ROWS / 4;   // of x, that a producer copies
constexpr int SUM_STRIDE = COLUMNS + 4;  // floats from row to row: a warp's stores are in different banks
constexpr int SUMS = ROWS / 2;           // of a thread
constexpr int FULL = 1, EMPTY = 1 + X_STAGES;  // the first of X_STAGES barriers
static_assert(SEGMENT % WIDTH == 0 && SEGMENTS_OF_QUARTER % UNROLLED == 0, "whole stages, whole turns of the loop");
static_assert(UNROLLED * STAGES_OF_SEGMENT % RING == 0 && RING <= COUNT, "a turn of the loop has whole rings");
static_assert(ROWS_OF_WARP % 4 == 0, "a warp copies four rows at a time");
constexpr int AHEAD = X_STAGES - 2;            // of the stage that is transposed: consumers may be one behind
static_assert(AHEAD >= 1 && EMPTY + X_STAGES <= TILE_BARRIER, "copies run ahead; barriers are distinct");

FUNCTION void produce(const Arguments& p, int begin, int first_row) {
  const int warp = (thread_index() - CONSUMERS) / 32, lane = thread_index() % 32;
  auto tile = [&](int stage) { return shared_memory() + stage % X_STAGES * X_BYTES; };
  auto request = [&](int stage) {
    const u16* const from = p.x + begin + stage * WIDTH + lane % PIECES * 8;
    const int own_row = warp * ROWS_OF_WARP + lane / PIECES;
    char* const to = tile(stage);
#pragma unroll 4  // not more: this warpgroup has few registers
    for (int m = 0; m < ROWS_OF_WARP; m += 4) {
      const int row = first_row + own_row + m;
      // Rows that do not exist repeat the last one; their sums are not stored.
      copy_async(operand_piece(to, own_row + m, lane % PIECES),
                 from + (u64)(row < p.rows ? row : p.rows - 1) * p.x_stride);
    }
  };

#pragma unroll 1
  for (int stage = 0; stage < AHEAD; stage++) {
    if (stage < COUNT) request(stage);
    commit_copies();
  }
#pragma unroll 1
  for (int stage = 0; stage < COUNT; stage++) {
    wait_for_copies<AHEAD - 1>();
    sync_warp();
#pragma unroll 1
    for (int row = lane / 2; row < ROWS_OF_WARP; row += 16)
      transpose_operand(tile(stage), warp * ROWS_OF_WARP + row, lane % 2 * 4);
    publish_operands();
    arrive_at(FULL + stage % X_STAGES, THREADS);
    const int next = stage + AHEAD;
    if (next < COUNT) {
      if (next >= X_STAGES) sync_at(EMPTY + next % X_STAGES, THREADS);
      request(next);
    }
    commit_copies();
  }
}

constexpr int LOADS = WEIGHT_BYTES;  // of 16 bytes, of a stage and a row
struct Weights {                     // of one stage: rows g and g + 8 of the warp's 16, lane t's part of twice 32 columns
  uint4 upper[LOADS], lower[LOADS];
};
FUNCTION uint4 half_of(const uint4 (&loads)[LOADS], int half) {
  return FP8 ? half_of_group(loads[0], half) : loads[FP8 ? 0 : half];
}

KERNEL_OF_BLOCKS(linear_wide, THREADS, BLOCKS) {
  const Arguments& p = arguments;
  const int rank = block_x() % CLUSTER, first = block_x() / CLUSTER * OUTPUTS_OF_BLOCK, first_row = block_y() * ROWS;
  const int begin = rank * (INPUTS / CLUSTER);
  let_next_start();
  if (thread_index() >= CONSUMERS) {
    give_registers_up_to<PRODUCER_REGISTERS>();
    wait_for_previous();
    produce(p, begin, first_row);
    return;
  }
  take_registers_up_to<CONSUMER_REGISTERS>();
  const int warp = thread_index() / 32, lane = thread_index() % 32, g = lane / 4, t = lane % 4;
  auto weights_of = [&](int row) {
    return p.weight + ((u64)weight_row(first, row, p.outputs) * INPUTS + begin) * WEIGHT_BYTES + t * 16;
  };
  const char* const upper = weights_of(warp * 16 + g);
  const char* const lower = weights_of(warp * 16 + g + 8);
  Weights weights[RING];
  auto request = [&](Weights& to, int stage) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      to.upper[i] = load_early(upper + stage * WIDTH * WEIGHT_BYTES + i * 64);
      to.lower[i] = load_early(lower + stage * WIDTH * WEIGHT_BYTES + i * 64);
    }
  };
#pragma unroll
  for (int stage = 0; stage < RING; stage++) request(weights[stage], stage);
  wait_for_previous();

  // [ROWS][SUM_STRIDE]: of the quarters so far. A block's only quarter is complete when nobody needs the stages.
  float* const sums = (float*)(shared_memory() + (QUARTERS > 1 ? X_STAGES * X_BYTES : 0));
  float segment_sum[SUMS], quarter_sum[SUMS];
  int stage = 0, slot = 0, slot_before = 0;  // slots of x
#pragma unroll 1
  for (int quarter = 0; quarter < QUARTERS; quarter++) {
#pragma unroll
    for (int n = 0; n < SUMS; n++) quarter_sum[n] = -0.f;  // -0 + s is s, also if s is -0
#pragma unroll 1
    for (int turn = 0; turn < SEGMENTS_OF_QUARTER / UNROLLED; turn++) {
#pragma unroll
      for (int i = 0; i < UNROLLED * STAGES_OF_SEGMENT; i++, stage++) {
        // A product's first operand is four registers in a row, of both rows.
        u32 a[4][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const uint4 u = half_of(weights[i % RING].upper, half), l = half_of(weights[i % RING].lower, half);
          const u32 words[8] = {u.x, l.x, u.y, l.y, u.z, l.z, u.w, l.w};
#pragma unroll
          for (int n = 0; n < 8; n++) a[half * 2 + n / 4][n % 4] = operand(words[n]);
        }
        if (stage + RING < COUNT) request(weights[i % RING], stage + RING);
        const char* const x = shared_memory() + slot * X_BYTES;
        sync_at(FULL + slot, THREADS);
        begin_products();
#pragma unroll
        for (int n = 0; n < 4; n++)
          wgmma<ROWS>(segment_sum, a[n][0], a[n][1], a[n][2], a[n][3], operand_descriptor(x, n * 16),
                      n || i % STAGES_OF_SEGMENT);
        commit_products();
        if (i % STAGES_OF_SEGMENT < STAGES_OF_SEGMENT - 1) {
          wait_for_products<1>(segment_sum);
        } else {
          wait_for_products<0>(segment_sum);
#pragma unroll
          for (int n = 0; n < SUMS; n++) quarter_sum[n] += segment_sum[n];
        }
        // The products of the stage before have ended; its memory may be filled again, if anybody waits for that.
        if (stage > 0 && stage - 1 + X_STAGES < COUNT) arrive_at(EMPTY + slot_before, THREADS);
        slot_before = slot;
        slot = slot + 1 < X_STAGES ? slot + 1 : 0;
      }
    }
    if (QUARTERS == 1) sync_at(TILE_BARRIER, CONSUMERS);
#pragma unroll
    for (int n = 0; n < SUMS; n++) {
      float* const at = sums + (n / 4 * 8 + 2 * t + n % 2) * SUM_STRIDE + warp * 16 + g + (n & 2) * 4;
      *at = quarter ? *at + quarter_sum[n] : quarter_sum[n];
    }
  }
  finish_tile<SUM_STRIDE, CONSUMERS>(p, sums, rank, first, first_row);
}
