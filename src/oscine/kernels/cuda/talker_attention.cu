// Attention of one new position per row over the blocks of a paged KV cache (attend.cuh); every row has its own length.
//
//     out = bf16(softmax(q . k / sqrt(DIM)) @ v)                                                       fp32 sums
//
// Order of the sums, the same for every number of rows: four warps per key head. Warp w takes positions 16w .. 16w + 15
// of each cache block, from the block of the new position down to the first, with a running maximum; then the warps are
// added in order.
//
// The positions that a warp takes first are read before the wait, and so are slots, positions and the block table: all
// were written before the last launch that is not programmatic. Rows with a negative slot keep their values.
//
// Defines: HEADS, KV_HEADS (two query heads per key head), OUT_IN_TILES (tiles.cuh). Grid: KV_HEADS, rows.
#include "device.cuh"
#include "rope.cuh"
#include "attend.cuh"
#include "tiles.cuh"

constexpr int BLOCK = 64, WARPS = BLOCK / POSITIONS;  // positions of a cache block; who share them
// Floats of a warp: sums with rounded weights, those with their rest, then peaks and norms, each padded to four.
constexpr int REST = GROUP * DIM, PEAKS = 2 * REST, NORMS = PEAKS + 4, PARTIAL = NORMS + 4;

struct Arguments {
  const u16* qkv;                              // [rows][(HEADS + 2 KV_HEADS) DIM]
  const u16 *q_scale, *k_scale;                // [DIM]
  const float *cos, *sin;                      // [positions][HALF]
  u16 *keys, *values;                          // [blocks][KV_HEADS][BLOCK][DIM]
  const u64 *block_table, *positions, *slots;  // [slots][blocks of a slot], [slots], [rows]
  u16* out;                                    // [rows][HEADS DIM]
  int qkv_stride, out_stride, block_stride, head_stride, table_stride;
  float epsilon, scale;
};

KERNEL_OF_BLOCKS(talker_attention, WARPS * 32, 3) {
  const Arguments& p = arguments;
  const int kv_head = block_x(), row = block_y();
  const int warp = thread_index() / 32, lane = thread_index() & 31, g = lane / 4, t = lane % 4;

  let_next_start();
  const long long slot = (long long)load_index_early(p.slots + row);
  if (slot < 0) {
    wait_for_previous();
    return;
  }
  const int position = (int)load_index_early(p.positions + slot);
  const u64* const table = p.block_table + slot * p.table_stride;
  const int begin = warp * POSITIONS;
  const int last = (position + BLOCK - begin) / BLOCK - 1;  // block with positions of this warp; -1: it has none
  const int newest = position - begin - last * BLOCK;  // among the warp's positions there, if below 16
  const u64 offset = (u64)kv_head * p.head_stride + begin * DIM;
  const u16* const lane_keys = p.keys + offset + (g * DIM + t * 8);
  const u16* const lane_values = p.values + offset + (2 * t * DIM + g * 8);
  u64 at = load_index_early(table + (last < 0 ? 0 : last)) * p.block_stride, next_block = 0;
  if (last > 0) next_block = load_index_early(table + last - 1);

  const int past = last < 0 ? 0 : newest;
  Keys keys;
  Values values;
  fetch(keys, lane_keys + at, [&](uint4& to, int i, const u16* from) { to = load_early_if(g + i < past, from); });
  fetch(values, lane_values + at,
        [&](uint4& to, int i, const u16* from) { to = load_early_if(2 * t + i < past, from); });
  const int part = lane / 8, place = lane % 8 * 8;
  const u16* const scale_at = (part < GROUP ? p.q_scale : p.k_scale) + place;
  const Piece scale = piece_of(load_early(scale_at), load_early(scale_at + HALF));
  Angles angles;
  load_rounded_early(angles.cos, p.cos + (u64)position * HALF + place);
  load_rounded_early(angles.sin, p.sin + (u64)position * HALF + place);
  wait_for_previous();

  float* const partial = (float*)shared_memory();  // [WARPS][PARTIAL]
  float* const mine = partial + warp * PARTIAL;
  const int member = g % GROUP;                       // the head of which this lane has weights
  float peak = LOWEST, norm = 0.f, mixed[8][4] = {};  // norm: of this lane's positions; mixed: as in operand_of
  if (last >= 0) {
    const u16* const own = p.qkv + (u64)row * p.qkv_stride + head_of_part(part, kv_head) * DIM + place;
    const Piece fresh = fresh_piece(own, part, scale, angles, p.epsilon);
    if (part >= KEY_PART && newest < POSITIONS)
      store_piece((part == KEY_PART ? p.keys : p.values) + offset + at + newest * DIM + place, fresh);
    u16* const parts = (u16*)mine;  // until the loop has ended
    store_piece(parts + part * DIM + place, fresh);
    sync_warp();
    Query query;
    take_query(query, parts + g / 2 % GROUP * DIM, g, t);
    take_new(keys, values, parts, newest, g, t);

    const float scale_of_scores = p.scale * LOG2_E;
    auto load_full = [](uint4& to, int, const u16* from) { to = load_early(from); };
#pragma unroll 1
    for (int block = last; block >= 0; block--) {
      float scores[2], weights[4], higher = peak;
      score(scores, keys, query);
      at = next_block * p.block_stride;
      if (block > 0) fetch(keys, lane_keys + at, load_full);
      if (block > 1) next_block = load_index_early(table + block - 2);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float sum = score_of(scores, i, t, member) * scale_of_scores;
        weights[i] = block < last || 2 * t + value_position(i) <= newest ? sum : LOWEST;
        higher = larger(higher, weights[i]);
      }
      higher = larger(higher, shuffle_xor(higher, 1));
      higher = larger(higher, shuffle_xor(higher, 2));
#pragma unroll
      for (int i = 0; i < 4; i++) weights[i] = power_of_two(weights[i] - higher);  // 0 for LOWEST
      const float shrink = power_of_two(peak - higher), other = shuffle_xor(shrink, 4);
      const float first = member ? other : shrink, second = member ? shrink : other;
      peak = higher;
      norm = norm * shrink + ((weights[0] + weights[1]) + (weights[2] + weights[3]));

      const Columns columns = columns_of(weights);
      const bool rest = g & 2;
#pragma unroll
      for (int e = 0; e < 8; e++) {
        u32 a[4];
        operand_of(a, values, e);
        mixed[e][0] *= first, mixed[e][1] *= second, mixed[e][2] *= first, mixed[e][3] *= second;
        mma(mixed[e], a[0], a[1], a[2], a[3], rest ? columns.rest[0] : columns.rounded[0],
            rest ? columns.rest[1] : columns.rounded[1]);
      }
      if (block > 0) fetch(values, lane_values + at, load_full);
    }
    sync_warp();
  }

  if (t < 2)  // columns 0 and 1 are rounded weights of both heads, 2 and 3 their rest
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int e = 0; e < 8; e += 4)
        *(float4*)(mine + t * REST + i % 2 * DIM + g * 8 + value_dimension(i / 2) + e) =
            make_float4(mixed[e][i], mixed[e + 1][i], mixed[e + 2][i], mixed[e + 3][i]);
  norm = sum_of_lanes(norm, 4);
  if (g < GROUP && t == 0) mine[PEAKS + g] = peak, mine[NORMS + g] = norm;
  sync_block();

  auto of_warp = [&](int w, int column) { return *(const float4*)(partial + w * PARTIAL + column); };
  if (thread_index() < GROUP * DIM / 4) {  // four outputs each
    const int column = thread_index() * 4, head = column / DIM;
    float peaks[WARPS], norms[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float4 a = of_warp(w, PEAKS), b = of_warp(w, NORMS);
      peaks[w] = head ? a.y : a.x;
      norms[w] = head ? b.y : b.x;
    }
    const float highest = larger(larger(peaks[0], peaks[1]), larger(peaks[2], peaks[3]));
    float total = 0.f;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float shrink = power_of_two(peaks[w] - highest);
      const float4 rounded = of_warp(w, column), rest = of_warp(w, REST + column);
      total = multiply_add(norms[w], shrink, total);
      sum.x = multiply_add(rounded.x + rest.x, shrink, sum.x);
      sum.y = multiply_add(rounded.y + rest.y, shrink, sum.y);
      sum.z = multiply_add(rounded.z + rest.z, shrink, sum.z);
      sum.w = multiply_add(rounded.w + rest.w, shrink, sum.w);
    }
    const uint2 outputs = make_uint2(pack(quotient(sum.x, total), quotient(sum.y, total)),
                                     pack(quotient(sum.z, total), quotient(sum.w, total)));
    store_two_pairs<OUT_IN_TILES>(p.out, row, kv_head * GROUP * DIM + column, p.out_stride, outputs);
  }
}
