// Matrix product for many rows (formula, order of the sums: linear.cuh), with the bits of linear_few.cu.
//
// A block has a tile of ROWS rows of x and COLUMNS weight rows. Where there are too few tiles to fill the GPU, a
// cluster of four blocks shares a tile: each takes a quarter of K, and the quarters meet through distributed shared
// memory. Otherwise one block goes through all four quarters; their sums meet in shared memory. Copies run ahead by
// STAGES - 1 steps of 64 columns; the first weights are requested before the wait for the kernel that makes x.
//
// Defines: INPUTS, SEGMENTS, ROWS, COLUMNS, ROW_WARPS, COLUMN_WARPS (warps that divide the tile), CLUSTER (1 or 4),
// STAGES, EPILOGUE, FP8. Grid: outputs / OUTPUTS_OF_BLOCK * CLUSTER, rows / ROWS rounded up.
#include "linear.cuh"
#include "tile.cuh"

constexpr int THREADS = ROW_WARPS * COLUMN_WARPS * 32;
constexpr int ROW_TILES = ROWS / ROW_WARPS / 16;  // mma tiles of a warp
constexpr int COLUMN_TILES = COLUMNS / COLUMN_WARPS / 8;
constexpr int WIDTH = 64;  // columns of K in a stage
constexpr int ROW_BYTES = WIDTH * 2, PIECES = WIDTH / 8;
constexpr int WEIGHT_ROW_BYTES = WIDTH * WEIGHT_BYTES, WEIGHT_PIECES = WEIGHT_ROW_BYTES / 16;
constexpr int X_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = X_BYTES + COLUMNS * WEIGHT_ROW_BYTES;
constexpr int STAGES_OF_SEGMENT = SEGMENT / WIDTH;
constexpr int COUNT = QUARTERS * SEGMENTS_OF_QUARTER * STAGES_OF_SEGMENT;
constexpr int AHEAD = STAGES - 1;
constexpr int SUM_STRIDE = COLUMNS + 8;         // floats from row to row: eight rows of a tile are in different banks
constexpr int ROWS_OF_COPY = THREADS / PIECES;  // rows that all threads copy at a time
constexpr int WEIGHT_ROWS_OF_COPY = THREADS / WEIGHT_PIECES;
static_assert(ROWS % (ROW_WARPS * 16) == 0 && COLUMNS % (COLUMN_WARPS * 8) == 0, "warps have whole tiles");
static_assert(EPILOGUE != GLU || COLUMNS % 16 == 0, "a gate tile has its up tile");
static_assert(SEGMENT % WIDTH == 0, "a segment has whole stages");
static_assert(ROWS % ROWS_OF_COPY == 0 || ROWS_OF_COPY % ROWS == 0, "copies of x");
static_assert(ROWS_OF_COPY % 2 == 0, "a thread copies even rows or odd ones: its swizzle is constant");

struct Sums {
  float at[ROW_TILES][COLUMN_TILES][4];
  FUNCTION void clear() {
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; n++) at[m][n][0] = at[m][n][1] = at[m][n][2] = at[m][n][3] = 0.f;
  }
  FUNCTION void take(const Sums& other, bool first) {  // the first is copied, so that a negative zero stays one
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) at[m][n][i] = first ? other.at[m][n][i] : at[m][n][i] + other.at[m][n][i];
  }
};

FUNCTION void add_pair(float* to, float x, float y, bool first) {
  const float2 before = first ? make_float2(0.f, 0.f) : *(const float2*)to;
  *(float2*)to = first ? make_float2(x, y) : make_float2(before.x + x, before.y + y);
}

// With FP8, the 64 bytes of two rows are all banks: eight lanes have no conflict as it is.
FUNCTION int weight_place(int row, int piece) {
  return FP8 ? row * WEIGHT_ROW_BYTES + piece * 16 : swizzled<ROW_BYTES>(row, piece);
}

KERNEL_OF_BLOCKS(linear_many, THREADS, 1) {
  const Arguments& p = arguments;
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int rank = block_x() % CLUSTER, first = block_x() / CLUSTER * OUTPUTS_OF_BLOCK, first_row = block_y() * ROWS;
  const int begin = rank * (INPUTS / CLUSTER);
  char* const memory = shared_memory();
  const int own_row = thread / PIECES, own_piece = thread % PIECES;
  const int own_weight_row = thread / WEIGHT_PIECES, own_weight_piece = thread % WEIGHT_PIECES;

  auto request_weights = [&](int stage) {
    char* const to =
        memory + stage % STAGES * STAGE_BYTES + X_BYTES + weight_place(own_weight_row, own_weight_piece);
#pragma unroll
    for (int n = 0; n < COLUMNS; n += WEIGHT_ROWS_OF_COPY) {
      const u64 row = (u64)weight_row(first, n + own_weight_row, p.outputs) * INPUTS + begin + stage * WIDTH;
      copy_async(to + n * WEIGHT_ROW_BYTES, p.weight + row * WEIGHT_BYTES + own_weight_piece * 16,
                 n + own_weight_row < COLUMNS);
    }
  };
  auto request_x = [&](int stage) {
    char* const to = memory + stage % STAGES * STAGE_BYTES + swizzled<ROW_BYTES>(own_row, own_piece);
#pragma unroll
    for (int m = 0; m < ROWS; m += ROWS_OF_COPY) {
      const int row = first_row + m + own_row;
      // Rows that do not exist repeat the last one; their sums are not stored.
      const u16* from = p.x + (u64)(row < p.rows ? row : p.rows - 1) * p.x_stride;
      copy_async(to + m * ROW_BYTES, from + begin + stage * WIDTH + own_piece * 8, m + own_row < ROWS);
    }
  };

  let_next_start();
#pragma unroll
  for (int stage = 0; stage < AHEAD; stage++)
    if (stage < COUNT) request_weights(stage);
  wait_for_previous();
#pragma unroll
  for (int stage = 0; stage < AHEAD; stage++) {
    if (stage < COUNT) request_x(stage);
    commit_copies();  // the first group holds the weights of all these stages too
  }

  const int warp_row = warp / COLUMN_WARPS * ROW_TILES * 16, warp_column = warp % COLUMN_WARPS * COLUMN_TILES * 8;
  // [ROWS][SUM_STRIDE]: of the quarters so far. A block's only quarter is complete when nobody needs the stages.
  float* const sums = (float*)(memory + (QUARTERS > 1 ? STAGES * STAGE_BYTES : 0));
  Sums segment_sum, quarter_sum;
  int stage = 0;
#pragma unroll 1
  for (int quarter = 0; quarter < QUARTERS; quarter++) {
#pragma unroll 1
    for (int segment = 0; segment < SEGMENTS_OF_QUARTER; segment++) {
      segment_sum.clear();
#pragma unroll 1
      for (int i = 0; i < STAGES_OF_SEGMENT; i++, stage++) {
        wait_for_copies<AHEAD - 1>();
        sync_block();  // everybody's copies are there, and nobody reads the stage that is filled next
        if (stage + AHEAD < COUNT) {
          request_weights(stage + AHEAD);
          request_x(stage + AHEAD);
        }
        commit_copies();
        const char* const x = memory + stage % STAGES * STAGE_BYTES;
        const char* const weight = x + X_BYTES;
        auto weights_at = [&](int n, int piece) {
          return *(const uint4*)(weight + weight_place(warp_column + n * 8 + g, piece));
        };
        uint4 groups[COLUMN_TILES];
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++)
          if (FP8) groups[n] = weights_at(n, t);
#pragma unroll
        for (int step = 0; step < WIDTH / 32; step++) {
          uint4 a[ROW_TILES][2], b[COLUMN_TILES];
#pragma unroll
          for (int m = 0; m < ROW_TILES; m++) {
            a[m][0] = *(const uint4*)(x + swizzled<ROW_BYTES>(warp_row + m * 16 + g, step * 4 + t));
            a[m][1] = *(const uint4*)(x + swizzled<ROW_BYTES>(warp_row + m * 16 + g + 8, step * 4 + t));
          }
#pragma unroll
          for (int n = 0; n < COLUMN_TILES; n++)
            b[n] = FP8 ? half_of_group(groups[n], step) : weights_at(n, step * 4 + t);
#pragma unroll
          for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) add_step(segment_sum.at[m][n], a[m][0], a[m][1], b[n]);
        }
      }
      quarter_sum.take(segment_sum, segment == 0);
    }
    if (QUARTERS == 1) sync_block();
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; n++) {
        float* const at = sums + (warp_row + m * 16 + g) * SUM_STRIDE + warp_column + n * 8 + 2 * t;
        add_pair(at, quarter_sum.at[m][n][0], quarter_sum.at[m][n][1], quarter == 0);
        add_pair(at + 8 * SUM_STRIDE, quarter_sum.at[m][n][2], quarter_sum.at[m][n][3], quarter == 0);
      }
  }
  finish_tile<SUM_STRIDE, THREADS>(p, sums, rank, first, first_row);
}
