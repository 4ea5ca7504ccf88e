// RMSNorm of many rows (formula and order of the sum: norm.cuh), for products that do not norm x themselves.
//
// One warp per row; four lanes take a segment, as in the product for few rows, so both give the same bits.
//
// Defines: INPUTS (width), SEGMENTS (of the product that follows; the norm's bits depend on it), OUT_IN_TILES (tiles.cuh).
#include "device.cuh"
#include "norm.cuh"
#include "tiles.cuh"

constexpr int SEGMENT = INPUTS / SEGMENTS;
constexpr int STEPS = SEGMENT / 32;
constexpr int GROUPS = SEGMENTS / 8;  // segments of a lane: lane / 4, lane / 4 + 8 ..
constexpr int WARPS = 4;
static_assert(SEGMENTS % 8 == 0 && SEGMENT % 32 == 0, "eight segments at a time, in whole steps");

struct Arguments {
  const u16* x;      // [rows][INPUTS]
  const u16* scale;  // [INPUTS]
  u16* out;          // [rows][INPUTS], or in tiles
  int rows, x_stride, out_stride;
  float epsilon;
};

KERNEL(rms_norm, WARPS * 32) {
  const Arguments& p = arguments;
  const int row = block_x() * WARPS + thread_index() / 32, lane = thread_index() % 32;
  const int first = lane / 4 * SEGMENT + lane % 4 * 8;
  let_next_start();
  uint4 scale[GROUPS][STEPS];
#pragma unroll
  for (int group = 0; group < GROUPS; group++)
#pragma unroll
    for (int step = 0; step < STEPS; step++)
      scale[group][step] = load_early(p.scale + first + group * 8 * SEGMENT + step * 32);
  wait_for_previous();
  if (row >= p.rows) return;

  uint4 x[GROUPS][STEPS];
#pragma unroll
  for (int group = 0; group < GROUPS; group++)
#pragma unroll
    for (int step = 0; step < STEPS; step++)
      x[group][step] = load(p.x + (u64)row * p.x_stride + first + group * 8 * SEGMENT + step * 32);
  float total = 0.f;
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    float sums[2] = {0.f, 0.f};
#pragma unroll
    for (int step = 0; step < STEPS; step++) add_squares(sums, x[group][step]);
    const float squares = sum_of_four_lanes(sums);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float next = shuffle_from(squares, i * 4);
      total = group + i ? total + next : next;
    }
  }
  const float inverse = inverse_root(total * (1.f / INPUTS) + p.epsilon);
#pragma unroll
  for (int group = 0; group < GROUPS; group++)
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      const uint4 y = normed(x[group][step], inverse, scale[group][step]);
      const int column = first + group * 8 * SEGMENT + step * 32;
      if (OUT_IN_TILES) {
        store_tile_piece(p.out, row, column, p.out_stride, y);
      } else {
        *(uint4*)(p.out + (u64)row * p.out_stride + column) = y;
      }
    }
}
