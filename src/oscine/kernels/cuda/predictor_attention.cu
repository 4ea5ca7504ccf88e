// Attention of the predictor over at most 16 positions; all sequences are at the same position.
//
//     q, k: norm and rotation (rope.cuh);  out = bf16(softmax(q . k / sqrt(DIM)) @ v)                  fp32 sums
//
// One warp per query head, which holds all 16 positions in registers: no barrier and no shared memory. A lane has
// dimensions 2 lane, 2 lane + 1 and these + 64. The cached keys and values are read before the wait: the sampler, which
// runs between two passes, lets this kernel start only after its own wait for the kernels that wrote them.
//
// Defines: HEADS, KV_HEADS, NEW (positions per sequence in this pass: 1 or 2), OUT_IN_TILES (tiles.cuh).
// Grid: KV_HEADS, sequences.
#include "device.cuh"
#include "rope.cuh"
#include "tiles.cuh"

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int CAPACITY = 16;

struct Arguments {
  const u16* qkv;                // [sequences * NEW][(HEADS + 2 KV_HEADS) DIM]
  const u16 *q_scale, *k_scale;  // [DIM]
  const float *cos, *sin;        // [CAPACITY][HALF]
  u16 *keys, *values;            // [sequences][KV_HEADS][CAPACITY][DIM]
  u16* out;                      // [sequences * NEW][HEADS DIM]
  int position, qkv_stride, out_stride, sequence_stride, head_stride;
  float epsilon, scale;
};

struct Head {
  u32 lower, upper;
};

FUNCTION float sum_of_warp(float x) {
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) x += shuffle_xor(x, mask);
  return x;
}

FUNCTION Head rotated(Head head, const Head& scale, u32 cos, u32 sin, float epsilon) {
  const float squares = sum_of_warp(squares_of(head.upper, squares_of(head.lower, 0.f)));
  rotate(head.lower, head.upper, inverse_of_head(squares, epsilon), scale.lower, scale.upper, cos, sin);
  return head;
}

FUNCTION Head load_head(const u16* from, int lane) {
  return {load_pair(from + 2 * lane), load_pair(from + HALF + 2 * lane)};
}

// Adds v[position] over the lanes; lane 2p and 2p + 1 get the sum of position p. Each round halves both.
FUNCTION float sum_by_position(float (&v)[CAPACITY], int lane) {
#pragma unroll
  for (int mask = 16, count = 8; count; mask >>= 1, count >>= 1) {
    const bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < count; i++) {
      const float sent = upper ? v[i] : v[i + count], kept = upper ? v[i + count] : v[i];
      v[i] = kept + shuffle_xor(sent, mask);
    }
  }
  return v[0] + shuffle_xor(v[0], 1);
}

KERNEL(predictor_attention, GROUP * 32) {
  const Arguments& p = arguments;
  const int kv_head = block_x(), sequence = block_y(), warp = thread_index() / 32, lane = thread_index() % 32;
  const int head = kv_head * GROUP + warp;
  const u64 cache = (u64)sequence * p.sequence_stride + (u64)kv_head * p.head_stride + 2 * lane;

  let_next_start();
  Head k[CAPACITY], v[CAPACITY];
#pragma unroll
  for (int at = 0; at < CAPACITY; at++) {
    const bool past = at < p.position;
    k[at] = {load_pair_early_if(past, p.keys + cache + at * DIM),
             load_pair_early_if(past, p.keys + cache + at * DIM + HALF)};
    v[at] = {load_pair_early_if(past, p.values + cache + at * DIM),
             load_pair_early_if(past, p.values + cache + at * DIM + HALF)};
  }
  const Head q_scale = {load_pair_early(p.q_scale + 2 * lane), load_pair_early(p.q_scale + HALF + 2 * lane)};
  const Head k_scale = {load_pair_early(p.k_scale + 2 * lane), load_pair_early(p.k_scale + HALF + 2 * lane)};
  u32 cos[NEW], sin[NEW];
#pragma unroll
  for (int token = 0; token < NEW; token++) {
    cos[token] = load_rounded_pair_early(p.cos + (p.position + token) * HALF + 2 * lane);
    sin[token] = load_rounded_pair_early(p.sin + (p.position + token) * HALF + 2 * lane);
  }
  wait_for_previous();

  Head q[NEW];
#pragma unroll
  for (int token = 0; token < NEW; token++) {
    const u16* const row = p.qkv + (u64)(sequence * NEW + token) * p.qkv_stride;
    q[token] = load_head(row + head * DIM, lane);
    const Head new_k =
        rotated(load_head(row + (HEADS + kv_head) * DIM, lane), k_scale, cos[token], sin[token], p.epsilon);
    const Head new_v = load_head(row + (HEADS + KV_HEADS + kv_head) * DIM, lane);
    const int position = p.position + token;
    if (warp == 0) {
      *(u32*)(p.keys + cache + position * DIM) = new_k.lower;
      *(u32*)(p.keys + cache + position * DIM + HALF) = new_k.upper;
      *(u32*)(p.values + cache + position * DIM) = new_v.lower;
      *(u32*)(p.values + cache + position * DIM + HALF) = new_v.upper;
    }
#pragma unroll
    for (int at = 0; at < CAPACITY; at++)
      if (at == position) k[at] = new_k, v[at] = new_v;
  }
#pragma unroll
  for (int token = 0; token < NEW; token++) {
    const Head query = rotated(q[token], q_scale, cos[token], sin[token], p.epsilon);
    float score[CAPACITY];
#pragma unroll
    for (int at = 0; at < CAPACITY; at++) {
      float sum = low(query.lower) * low(k[at].lower);
      sum = multiply_add(high(query.lower), high(k[at].lower), sum);
      sum = multiply_add(low(query.upper), low(k[at].upper), sum);
      score[at] = multiply_add(high(query.upper), high(k[at].upper), sum);
    }
    const bool seen = lane / 2 <= p.position + token;
    const float own = sum_by_position(score, lane) * p.scale;  // of position lane / 2
    float peak = seen ? own : -1e30f;
#pragma unroll
    for (int mask = 16; mask > 1; mask >>= 1) peak = larger(peak, shuffle_xor(peak, mask));
    const float share = seen ? exponential(own - peak) : 0.f;
    float norm = share;
#pragma unroll
    for (int mask = 16; mask > 1; mask >>= 1) norm += shuffle_xor(norm, mask);
    float mixed[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int at = 0; at < CAPACITY; at++) {
      const float weight = shuffle_from(share, 2 * at);
      mixed[0] = multiply_add(weight, low(v[at].lower), mixed[0]);
      mixed[1] = multiply_add(weight, high(v[at].lower), mixed[1]);
      mixed[2] = multiply_add(weight, low(v[at].upper), mixed[2]);
      mixed[3] = multiply_add(weight, high(v[at].upper), mixed[3]);
    }
    const int row = sequence * NEW + token, column = head * DIM + 2 * lane;
    const u32 lower = pack(quotient(mixed[0], norm), quotient(mixed[1], norm));
    const u32 upper = pack(quotient(mixed[2], norm), quotient(mixed[3], norm));
    store_pair<OUT_IN_TILES>(p.out, row, column, p.out_stride, lower);
    store_pair<OUT_IN_TILES>(p.out, row, column + HALF, p.out_stride, upper);
  }
}
