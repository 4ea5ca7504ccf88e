// Copies rows into tiles (tiles.cuh), for products whose x no other kernel has stored so. One warp per row.
//
// Defines: INPUTS (width).
#include "device.cuh"
#include "tiles.cuh"

constexpr int WARPS = 4;
static_assert(INPUTS % 256 == 0, "a warp reads 256 columns at a time");

struct Arguments {
  const u16* x;  // [rows][INPUTS]
  u16* out;      // in tiles
  int rows, x_stride, out_stride;
};

KERNEL(tile_rows, WARPS * 32) {
  const Arguments& p = arguments;
  const int row = block_x() * WARPS + thread_index() / 32, lane = thread_index() % 32;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows) return;
#pragma unroll
  for (int column = lane * 8; column < INPUTS; column += 256) {
    store_tile_piece(p.out, row, column, p.out_stride, load(p.x + (u64)row * p.x_stride + column));
  }
}
