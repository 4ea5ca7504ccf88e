// The end of a product for many rows: a tile's sums are in shared memory, one quarter of K in each block of a cluster or
// all of it in a single block. Quarters are added in order (linear.cuh); then each block finishes a part of the rows.
//
// The outputs of a GLU are the x of another product: they are stored in tiles.
//
// Defines of the kernel: ROWS, COLUMNS (weight rows of the tile), CLUSTER (1 or 4), EPILOGUE.
#include "tiles.cuh"
constexpr int OUTPUTS_OF_BLOCK = EPILOGUE == GLU ? COLUMNS / 2 : COLUMNS;
constexpr int QUARTERS = 4 / CLUSTER;  // of a block
constexpr int TILE_BARRIER = 15;       // of the threads that have sums
static_assert(CLUSTER == 1 || CLUSTER == 4, "a block has all quarters or one");

FUNCTION float4 sum_of_quarters(const float* own) {  // of four adjacent weight rows
  if constexpr (CLUSTER == 1) {
    return *(const float4*)own;
  } else {
    float4 part[4];
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) part[quarter] = load_from_block(own, quarter);
    float4 sum = part[0];
#pragma unroll
    for (int quarter = 1; quarter < 4; quarter++) {
      sum.x += part[quarter].x;
      sum.y += part[quarter].y;
      sum.z += part[quarter].z;
      sum.w += part[quarter].w;
    }
    return sum;
  }
}

// `sums` is [ROWS][STRIDE]. To be called by the threads that have sums, 0 to THREADS - 1, when they have stored them; in a
// cluster, all others must have ended or end soon.
template <int STRIDE, int THREADS>
FUNCTION void finish_tile(const Arguments& p, const float* sums, int rank, int first, int first_row) {
  if (CLUSTER > 1)
    sync_cluster();
  else
    sync_at(TILE_BARRIER, THREADS);
  constexpr int FOURS = OUTPUTS_OF_BLOCK / 4, ROWS_OF_RANK = ROWS / CLUSTER;
  for (int i = thread_index(); i < ROWS_OF_RANK * FOURS; i += THREADS) {
    const int tile_row = rank * ROWS_OF_RANK + i / FOURS, n = i % FOURS * 4, row = first_row + tile_row;
    if (row < p.rows) {
      const float* const own = sums + tile_row * STRIDE + place_of_output(n);
      uint2 other = make_uint2(0, 0);
      if (EPILOGUE == RESIDUAL) other = load_two_pairs(p.residual + (u64)row * p.residual_stride + first + n);
      if (EPILOGUE == BIAS) other = load_two_pairs(p.bias + first + n);
      float2 scales[4];
#pragma unroll
      for (int j = 0; j < 4; j++) scales[j] = scales_of(p, first + n + j);
      float4 sum = sum_of_quarters(own);
      sum = make_float4(scaled(sum.x, scales[0].x), scaled(sum.y, scales[1].x), scaled(sum.z, scales[2].x),
                        scaled(sum.w, scales[3].x));
      float4 up = EPILOGUE == GLU ? sum_of_quarters(own + 8) : make_float4(0.f, 0.f, 0.f, 0.f);
      up = make_float4(scaled(up.x, scales[0].y), scaled(up.y, scales[1].y), scaled(up.z, scales[2].y),
                       scaled(up.w, scales[3].y));
      const uint2 outputs =
          make_uint2(pack(finished(sum.x, up.x, low(other.x)), finished(sum.y, up.y, high(other.x))),
                     pack(finished(sum.z, up.z, low(other.y)), finished(sum.w, up.w, high(other.y))));
      store_two_pairs<EPILOGUE == GLU>(p.out, row, first + n, p.out_stride, outputs);
    }
  }
  if (CLUSTER > 1) sync_cluster();  // the others may still read this block's memory
}
