// Attention of the predictor over at most 16 positions (attend.cuh); all sequences are at the same position.
//
//     out = bf16(softmax(q . k / sqrt(DIM)) @ v)                                                       fp32 sums
//
// One warp per key head: no barrier of a block. The cached keys and values are read before the wait: the sampler, which
// runs between two passes, lets this kernel start only after its own wait for the kernels that wrote them.
//
// Defines: HEADS, KV_HEADS, NEW (positions per sequence in this pass: 1 or 2), OUT_IN_TILES (tiles.cuh).
// Grid: KV_HEADS, sequences.
#include "device.cuh"
#include "rope.cuh"
#include "attend.cuh"
#include "tiles.cuh"

constexpr int QUERIES = GROUP * NEW;
static_assert(NEW == 1 || NEW == 2, "8 columns");

struct Arguments {
  const u16* qkv;                // [sequences * NEW][(HEADS + 2 KV_HEADS) DIM]
  const u16 *q_scale, *k_scale;  // [DIM]
  const float *cos, *sin;        // [POSITIONS][HALF]
  u16 *keys, *values;            // [sequences][KV_HEADS][POSITIONS][DIM]
  u16* out;                      // [sequences * NEW][HEADS DIM]
  int position, qkv_stride, out_stride, sequence_stride, head_stride;
  float epsilon, scale;
};

KERNEL(predictor_attention, 32) {
  const Arguments& p = arguments;
  const int kv_head = block_x(), sequence = block_y(), lane = thread_index() & 31, g = lane / 4, t = lane % 4;
  const u64 cache = (u64)sequence * p.sequence_stride + (u64)kv_head * p.head_stride;

  let_next_start();
  Keys keys;
  Values values;
  fetch(keys, p.keys + cache + (g * DIM + t * 8),
        [&](uint4& to, int i, const u16* from) { to = load_early_if(g + i < p.position, from); });
  fetch(values, p.values + cache + (2 * t * DIM + g * 8),
        [&](uint4& to, int i, const u16* from) { to = load_early_if(2 * t + i < p.position, from); });
  const int part = lane / 8, place = lane % 8 * 8;
  const u16* const scale_at = (part < GROUP ? p.q_scale : p.k_scale) + place;
  const Piece scale = piece_of(load_early(scale_at), load_early(scale_at + HALF));
  Angles angles[NEW];
#pragma unroll
  for (int token = 0; token < NEW; token++) {
    load_rounded_early(angles[token].cos, p.cos + (p.position + token) * HALF + place);
    load_rounded_early(angles[token].sin, p.sin + (p.position + token) * HALF + place);
  }
  wait_for_previous();

  u16* const parts = (u16*)shared_memory();  // [NEW][PARTS][DIM]
  const u16* const own = p.qkv + (u64)sequence * NEW * p.qkv_stride + head_of_part(part, kv_head) * DIM + place;
#pragma unroll
  for (int token = 0; token < NEW; token++) {
    const Piece fresh = fresh_piece(own + token * p.qkv_stride, part, scale, angles[token], p.epsilon);
    if (part >= KEY_PART)
      store_piece((part == KEY_PART ? p.keys : p.values) + cache + (p.position + token) * DIM + place, fresh);
    store_piece(parts + (token * PARTS + part) * DIM + place, fresh);
  }
  sync_warp();
#pragma unroll
  for (int token = 0; token < NEW; token++)
    take_new(keys, values, parts + token * PARTS * DIM, p.position + token, g, t);
  Query query;
  const int asked = g / 2 % QUERIES;
  take_query(query, parts + (asked / GROUP * PARTS + asked % GROUP) * DIM, g, t);

  // Columns of weights: query after query, and again, so that every lane gets sums of a token.
  const int own_query = g % QUERIES, newest = p.position + own_query / GROUP;
  float scores[2], weights[4], peak = LOWEST;
  score(scores, keys, query);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float sum = score_of(scores, i, t, own_query) * (p.scale * LOG2_E);
    weights[i] = 2 * t + value_position(i) <= newest ? sum : LOWEST;
    peak = larger(peak, weights[i]);
  }
  peak = larger(peak, shuffle_xor(peak, 1));
  peak = larger(peak, shuffle_xor(peak, 2));
#pragma unroll
  for (int i = 0; i < 4; i++) weights[i] = power_of_two(weights[i] - peak);  // 0 for LOWEST
  const float norm = sum_of_lanes((weights[0] + weights[1]) + (weights[2] + weights[3]), 4);
  const Columns columns = columns_of(weights);
  float mixed[8][4] = {};
#pragma unroll
  for (int e = 0; e < 8; e++) {
    u32 a[4];
    operand_of(a, values, e);
    mma(mixed[e], a[0], a[1], a[2], a[3], columns.rounded[0], columns.rounded[1]);
    mma(mixed[e], a[0], a[1], a[2], a[3], columns.rest[0], columns.rest[1]);
  }

  // Lane t has both heads of the token t % NEW. Of one token, lanes share the heads; of two, each lane stores both.
  const int half = t / 2, token = t % NEW;
#pragma unroll
  for (int i = 0; i < NEW; i++) {
    const int member = NEW == 1 ? t % 2 : i;
    const float total = shuffle_from(norm, (token * GROUP + member) * 4);
    float out[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const float lower = member ? mixed[e][1] : mixed[e][0], upper = member ? mixed[e][3] : mixed[e][2];
      out[e] = quotient(half ? upper : lower, total);
    }
    const int column = (kv_head * GROUP + member) * DIM + half * HALF + g * 8;
#pragma unroll
    for (int e = 0; e < 8; e += 4)
      store_two_pairs<OUT_IN_TILES>(p.out, sequence * NEW + token, column + e, p.out_stride,
                                    make_uint2(pack(out[e], out[e + 1]), pack(out[e + 2], out[e + 3])));
  }
}
