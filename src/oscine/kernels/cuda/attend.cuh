// Attention of one warp to 16 positions of a key head, which it holds in registers.
//
//     q, k: norm and rotation (rope.cuh);  weights = softmax(q . k / sqrt(DIM));  weights @ v            fp32 sums
//
// Both products run on mma, with keys and values as the left operand; g = lane / 4 and t = lane % 4 (device.cuh).
//  * Scores: 8 positions have 16 rows, one with the even pairs of dimensions and one with the odd pairs. So a query has
//    two columns, and a lane's 16 bytes of a key are its operand as they are.
//  * Mixing: rows are dimensions, columns are weights, rounded to bf16. What that rounding left over is added too, so
//    weights have 16 bits.
//
// Defines of the kernel: HEADS, KV_HEADS (two query heads per key head).
constexpr int GROUP = 2, POSITIONS = 16;
constexpr float LOWEST = -1e30f, LOG2_E = 1.44269504f;  // softmax with powers of two
static_assert(HEADS == GROUP * KV_HEADS, "two query heads per key head");

// Keys: positions g and g + 8, dimensions 8t .. 8t + 7 of each 32. Values: positions 2t, 2t + 1, 2t + 8 and 2t + 9,
// dimensions 8g .. 8g + 7 of each 64.
struct Keys {
  uint4 piece[2][4];
};
struct Values {
  uint4 piece[4][2];
};
FUNCTION int key_position(int i) { return i * 8; }                // from g on
FUNCTION int value_position(int i) { return i % 2 + i / 2 * 8; }  // from 2t on
FUNCTION int key_dimension(int n) { return n * (DIM / 4); }       // from 8t on
FUNCTION int value_dimension(int n) { return n * HALF; }          // from 8g on

// `from`: the first of the lane's places. load(piece, position, address); the position counts from g or 2t on.
template <typename Load>
FUNCTION void fetch(Keys& to, const u16* from, Load load) {
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int n = 0; n < 4; n++)
      load(to.piece[i][n], key_position(i), from + (key_position(i) * DIM + key_dimension(n)));
}
template <typename Load>
FUNCTION void fetch(Values& to, const u16* from, Load load) {
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int n = 0; n < 2; n++)
      load(to.piece[i][n], value_position(i), from + (value_position(i) * DIM + value_dimension(n)));
}

// ---------------------------------------------------------------- a new position
// Its parts are two queries, the key and the value, of eight lanes each. They pass through shared memory, [PARTS][DIM].
constexpr int PARTS = GROUP + 2, KEY_PART = GROUP, VALUE_PART = GROUP + 1;
FUNCTION int head_of_part(int part, int kv_head) {
  return part < GROUP ? kv_head * GROUP + part : HEADS + (part - GROUP) * KV_HEADS + kv_head;
}
FUNCTION Piece fresh_piece(const u16* from, int part, const Piece& scale, const Angles& angles, float epsilon) {
  const Piece raw = piece_of(load(from), load(from + HALF)), turned = rotated(raw, scale, angles, epsilon);
  return part == VALUE_PART ? raw : turned;
}
FUNCTION void take_new(Keys& keys, Values& values, const u16* parts, int position, int g, int t) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (g + key_position(i) == position)
#pragma unroll
      for (int n = 0; n < 4; n++)
        keys.piece[i][n] = *(const uint4*)(parts + KEY_PART * DIM + t * 8 + key_dimension(n));
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (2 * t + value_position(i) == position)
#pragma unroll
      for (int n = 0; n < 2; n++)
        values.piece[i][n] = *(const uint4*)(parts + VALUE_PART * DIM + g * 8 + value_dimension(n));
}

// ---------------------------------------------------------------- the two products
struct Query {  // a lane's column
  u32 pair[4][2];
};
FUNCTION void take_query(Query& query, const u16* part, int g, int t) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    const uint4 q = *(const uint4*)(part + t * 8 + key_dimension(n));
    query.pair[n][0] = g % 2 ? q.y : q.x, query.pair[n][1] = g % 2 ? q.w : q.z;
  }
}

// The query with columns 2n and 2n + 1: lane 4g + n gets its scores of positions g and g + 8.
FUNCTION void score(float (&scores)[2], const Keys& keys, const Query& query) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const uint4& k = keys.piece[i][n];
      mma(sum, k.x, k.y, k.z, k.w, query.pair[n][0], query.pair[n][1]);
    }
    scores[i] = sum[0] + sum[3];
  }
}
// The query's score of this lane's i-th position of values.
FUNCTION float score_of(const float (&scores)[2], int i, int t, int query) {
  return shuffle_from(scores[i / 2], (2 * t + i % 2) * 4 + query);
}

struct Columns {  // of weights, and of what is left of them after rounding
  u32 rounded[2], rest[2];
};
FUNCTION Columns columns_of(const float (&weights)[4]) {
  Columns columns;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float a = weights[2 * i], b = weights[2 * i + 1];
    columns.rounded[i] = pack(a, b);
    columns.rest[i] = pack(a - low(columns.rounded[i]), b - high(columns.rounded[i]));
  }
  return columns;
}

FUNCTION u32 word(const uint4& v, int i) { return i < 2 ? (i ? v.y : v.x) : (i == 2 ? v.z : v.w); }
// The left operand of dimensions 8g + e and 64 + 8g + e.
FUNCTION void operand_of(u32 (&a)[4], const Values& values, int e) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint4 &one = values.piece[i / 2 * 2][i % 2], &two = values.piece[i / 2 * 2 + 1][i % 2];
    const u32 first = word(one, e / 2), second = word(two, e / 2);
    a[i] = e % 2 ? upper_halves(first, second) : lower_halves(first, second);
  }
}
