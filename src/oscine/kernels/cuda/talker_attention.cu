// Attention of one new position per row over the blocks of a paged KV cache; every row has its own length.
//
//     q, k: norm and rotation (rope.cuh);  out = bf16(softmax(q . k / sqrt(DIM)) @ v)                  fp32 sums
//
// Order of the sums, the same for every number of rows: 16 streams per key head. Stream s takes positions s, s + 16,
// s + 32 .. , those of a cache block at a time, with a running maximum; the stream of the new position starts with it.
// The four streams of a warp are added in pairs, then the four warps in order. The warps are in SPLIT blocks of a
// cluster: many for few rows, one for many rows. That changes where a warp runs, not what it adds.
//
// Eight lanes share a position: lane i has dimensions 8i .. 8i + 7 and these + 64. The first cache block is read
// before the wait, and so are slots, positions and the block table: all were written before the last launch that is not
// programmatic. Rows with a negative slot keep their values.
//
// Defines: HEADS, KV_HEADS (two query heads per key head), SPLIT (1, 2 or 4), OUT_IN_TILES (tiles.cuh).
// Grid: SPLIT, KV_HEADS, rows.
#include "device.cuh"
#include "rope.cuh"
#include "tiles.cuh"

constexpr int GROUP = 2, WARPS = 4, STREAMS = WARPS * 4;
constexpr int BLOCK = 64, TURNS = BLOCK / STREAMS;  // positions of a cache block; of a stream in a block
constexpr int WARPS_HERE = WARPS / SPLIT, THREADS = WARPS_HERE * 32;
constexpr int PARTIAL = GROUP * DIM + 2 * 4;  // floats of a warp: sums, then peaks and norms, each padded to four
constexpr float LOWEST = -1e30f;
static_assert(HEADS == GROUP * KV_HEADS, "two query heads per key head");

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

// 16 dimensions: two times 8 adjacent ones, as pairs.
struct Piece {
  u32 pair[8];
};
FUNCTION Piece piece_of(const uint4& lower, const uint4& upper) {
  return {{lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w}};
}
FUNCTION Piece load_piece(const u16* from) { return piece_of(load(from), load(from + HALF)); }
FUNCTION Piece load_piece_early_if(bool wanted, const u16* from) {
  return piece_of(load_early_if(wanted, from), load_early_if(wanted, from + HALF));
}
FUNCTION void store_piece(u16* to, const Piece& x) {
  *(uint4*)to = make_uint4(x.pair[0], x.pair[1], x.pair[2], x.pair[3]);
  *(uint4*)(to + HALF) = make_uint4(x.pair[4], x.pair[5], x.pair[6], x.pair[7]);
}

FUNCTION float sum_of_eight_lanes(float x) {
  x += shuffle_xor(x, 1);
  x += shuffle_xor(x, 2);
  return x + shuffle_xor(x, 4);
}

struct Angles {  // cos and sin of 8 adjacent dimensions
  u32 cos[4], sin[4];
};
FUNCTION void load_rounded_early(u32 (&pairs)[4], const float* from) {
  const uint4 a = load_early(from), b = load_early(from + 4);
  pairs[0] = pack(of_bits(a.x), of_bits(a.y)), pairs[1] = pack(of_bits(a.z), of_bits(a.w));
  pairs[2] = pack(of_bits(b.x), of_bits(b.y)), pairs[3] = pack(of_bits(b.z), of_bits(b.w));
}

FUNCTION void rotate_piece(Piece& x, const Piece& scale, const Angles& angles, float epsilon) {
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) squares = squares_of(x.pair[i], squares);
  const float inverse = inverse_of_head(sum_of_eight_lanes(squares), epsilon);
#pragma unroll
  for (int i = 0; i < 4; i++)
    rotate(x.pair[i], x.pair[4 + i], inverse, scale.pair[i], scale.pair[4 + i], angles.cos[i], angles.sin[i]);
}

FUNCTION float dot(const Piece& a, const Piece& b) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    sum = multiply_add(low(a.pair[i]), low(b.pair[i]), sum);
    sum = multiply_add(high(a.pair[i]), high(b.pair[i]), sum);
  }
  return sum_of_eight_lanes(sum);
}

FUNCTION void add_weighted(float (&mixed)[16], float weight, const Piece& v) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    mixed[2 * i] = multiply_add(weight, low(v.pair[i]), mixed[2 * i]);
    mixed[2 * i + 1] = multiply_add(weight, high(v.pair[i]), mixed[2 * i + 1]);
  }
}

KERNEL_OF_BLOCKS(talker_attention, THREADS, 3 * SPLIT) {
  const Arguments& p = arguments;
  const int rank = block_x(), kv_head = block_y(), row = block_z();
  const int lane = thread_index() % 32, warp = rank * WARPS_HERE + thread_index() / 32;
  const int stream = warp * 4 + lane / 8, place = lane % 8 * 8;

  let_next_start();
  const long long slot = (long long)load_index_early(p.slots + row);
  if (slot < 0) {
    wait_for_previous();
    return;
  }
  const int position = (int)load_index_early(p.positions + slot);
  const u64* const table = p.block_table + slot * p.table_stride;
  const int count = (position + BLOCK - 1) / BLOCK;

  auto is_past = [&](int block, int turn) { return block * BLOCK + turn * STREAMS + stream < position; };
  auto fetch = [&](Piece(&to)[TURNS], const u16* cache, int block) {  // this stream's positions of a block
    u64 base = 0;
    if (block < count) base = load_index_early(table + block) * p.block_stride + (u64)kv_head * p.head_stride + place;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
      to[turn] = load_piece_early_if(is_past(block, turn), cache + base + (turn * STREAMS + stream) * DIM);
  };
  Piece keys[TURNS], values[TURNS];
  fetch(keys, p.keys, 0);
  fetch(values, p.values, 0);
  const Piece q_scale = load_piece_early_if(true, p.q_scale + place),
              k_scale = load_piece_early_if(true, p.k_scale + place);
  Angles angles;
  load_rounded_early(angles.cos, p.cos + (u64)position * HALF + place);
  load_rounded_early(angles.sin, p.sin + (u64)position * HALF + place);
  const u64 new_block = load_index_early(table + position / BLOCK);
  wait_for_previous();

  const u16* const own = p.qkv + (u64)row * p.qkv_stride + place;
  Piece q[GROUP];
#pragma unroll
  for (int member = 0; member < GROUP; member++) q[member] = load_piece(own + (kv_head * GROUP + member) * DIM);
  Piece k = load_piece(own + (HEADS + kv_head) * DIM);
  const Piece v = load_piece(own + (HEADS + KV_HEADS + kv_head) * DIM);
#pragma unroll
  for (int member = 0; member < GROUP; member++) rotate_piece(q[member], q_scale, angles, p.epsilon);
  rotate_piece(k, k_scale, angles, p.epsilon);
  const bool has_new = stream == position % STREAMS;
  if (has_new) {
    const u64 at = new_block * p.block_stride + (u64)kv_head * p.head_stride + position % BLOCK * DIM + place;
    store_piece(p.keys + at, k);
    store_piece(p.values + at, v);
  }

  float peak[GROUP], norm[GROUP], mixed[GROUP][16];
#pragma unroll
  for (int member = 0; member < GROUP; member++) {
    const float score = dot(q[member], k) * p.scale;
    peak[member] = has_new ? score : LOWEST;
    norm[member] = has_new ? 1.f : 0.f;
#pragma unroll
    for (int i = 0; i < 16; i++) mixed[member][i] = 0.f;
    add_weighted(mixed[member], norm[member], v);
  }

#pragma unroll 1
  for (int block = 0; block < count; block++) {
    float score[GROUP][TURNS], higher[GROUP];
#pragma unroll
    for (int member = 0; member < GROUP; member++) higher[member] = peak[member];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
      for (int member = 0; member < GROUP; member++) {
        const float sum = dot(q[member], keys[turn]) * p.scale;
        score[member][turn] = is_past(block, turn) ? sum : LOWEST;
        higher[member] = larger(higher[member], score[member][turn]);
      }
    fetch(keys, p.keys, block + 1);
#pragma unroll
    for (int member = 0; member < GROUP; member++) {
      const float shrink = exponential(peak[member] - higher[member]);
      peak[member] = higher[member];
      norm[member] *= shrink;
#pragma unroll
      for (int i = 0; i < 16; i++) mixed[member][i] *= shrink;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
      for (int member = 0; member < GROUP; member++) {
        const float share = is_past(block, turn) ? exponential(score[member][turn] - higher[member]) : 0.f;
        norm[member] += share;
        add_weighted(mixed[member], share, values[turn]);
      }
    fetch(values, p.values, block + 1);
  }

  float* const partial = (float*)shared_memory();  // [WARPS_HERE][PARTIAL]
  float* const mine = partial + thread_index() / 32 * PARTIAL;
#pragma unroll
  for (int member = 0; member < GROUP; member++) {
    float highest = larger(peak[member], shuffle_xor(peak[member], 8));
    highest = larger(highest, shuffle_xor(highest, 16));
    const float shrink = exponential(peak[member] - highest);
    float total = norm[member] * shrink;
    total += shuffle_xor(total, 8);
    total += shuffle_xor(total, 16);
#pragma unroll
    for (int i = 0; i < 16; i++) {
      float sum = mixed[member][i] * shrink;
      sum += shuffle_xor(sum, 8);
      sum += shuffle_xor(sum, 16);
      if (lane < 8) mine[member * DIM + (i / 8) * HALF + place + i % 8] = sum;
    }
    if (lane == 0) mine[GROUP * DIM + member] = highest, mine[GROUP * DIM + 4 + member] = total;
  }
  if (SPLIT > 1)
    sync_cluster();
  else
    sync_block();

  auto of_warp = [&](int i, int at) {  // four adjacent floats
    const float* const there = partial + i % WARPS_HERE * PARTIAL + at;
    if constexpr (SPLIT > 1)
      return load_from_block(there, i / WARPS_HERE);
    else
      return *(const float4*)there;
  };
  constexpr int FOURS = GROUP * DIM / 4 / SPLIT;  // groups of four outputs of this block
  for (int i = thread_index(); i < FOURS; i += THREADS) {
    const int at = (rank * FOURS + i) * 4, member = at / DIM;
    float peaks[WARPS], norms[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float4 a = of_warp(w, GROUP * DIM), b = of_warp(w, GROUP * DIM + 4);
      peaks[w] = member ? a.y : a.x;
      norms[w] = member ? b.y : b.x;
    }
    const float highest = larger(larger(peaks[0], peaks[1]), larger(peaks[2], peaks[3]));
    float total = 0.f;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float shrink = exponential(peaks[w] - highest);
      const float4 part = of_warp(w, at);
      total = multiply_add(norms[w], shrink, total);
      sum.x = multiply_add(part.x, shrink, sum.x);
      sum.y = multiply_add(part.y, shrink, sum.y);
      sum.z = multiply_add(part.z, shrink, sum.z);
      sum.w = multiply_add(part.w, shrink, sum.w);
    }
    const uint2 outputs = make_uint2(pack(quotient(sum.x, total), quotient(sum.y, total)),
                                     pack(quotient(sum.z, total), quotient(sum.w, total)));
    store_two_pairs<OUT_IN_TILES>(p.out, row, kv_head * GROUP * DIM + at, p.out_stride, outputs);
  }
  if (SPLIT > 1) sync_cluster();  // the others may still read this block's memory
}
