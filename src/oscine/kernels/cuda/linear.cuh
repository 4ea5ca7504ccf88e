// The parts that the two matrix products share: the order of the sums, the layout of operands, the end of a product.
//
//     y = bf16(x @ weight.T + bias)                 fp32 sums, one rounding with the bias
//     GLU:       y = bf16(bf16(silu(gate)) * up), gate and up rounded to bf16 first; weight holds gate, then up rows
//     RESIDUAL:  y = bf16(residual + y)
//     FP8:       x @ weight.T is multiplied by the scale of the weight row, in fp32, before the bias
//
// Order of the sums, the same for every number of rows:
//  * K is divided into SEGMENTS pieces. The products of a segment are added by a chain of mma or wgmma, 32 columns
//    by two of them: the first takes columns 8t .. 8t + 3 of lane t (t = 0 .. 3), the second columns 8t + 4 .. 8t + 7.
//    So a lane's operands are 16 adjacent bytes of a row.
//  * A quarter of K is the sum of its segments, added in order; the total is the sum of the four quarters, in order.
// Few rows: one warp per segment. Many rows: one warpgroup runs through the segments of a quarter (or of all quarters)
// and keeps the same partial sums. So a row's bits do not depend on the number of rows.
//
// FP8: weights are e4m3, which bf16 holds exactly: they are widened when they are used, so all else stays as it is. In
// memory, each 64 columns of a row are in the order of lanes: 8 columns of the first 32, then 8 of the second 32, for
// lane 0, then for lanes 1 to 3. So a lane's operands of four instructions are 16 adjacent bytes.
#include "device.cuh"

#define PLAIN 0
#define RESIDUAL 1
#define GLU 2
#define BIAS 3

static_assert(INPUTS % (SEGMENTS * 32) == 0, "a segment has whole steps of 32 columns");
static_assert(SEGMENTS % 4 == 0, "a quarter has whole segments");
static_assert(!FP8 || INPUTS % (SEGMENTS * 64) == 0, "a segment has whole groups of 64 columns");

constexpr int SEGMENT = INPUTS / SEGMENTS;  // columns
constexpr int STEPS = SEGMENT / 32;
constexpr int SEGMENTS_OF_QUARTER = SEGMENTS / 4;
constexpr int WEIGHT_BYTES = FP8 ? 1 : 2;

struct Arguments {
  const u16* x;         // [rows][INPUTS]; of linear_tiled: in tiles
  const char* weight;   // [outputs][INPUTS], with GLU [2 outputs][INPUTS]: bf16, or with FP8 e4m3
  u16* out;             // [rows][outputs]; of linear_tiled with GLU: in tiles
  const u16* residual;  // [rows][outputs]; may be `out`
  const u16* bias;      // [outputs]
  const u16* scale;     // [INPUTS]: weight of the RMSNorm of x
  const float* weight_scale;  // FP8: [outputs], with GLU [2 outputs]
  int rows, outputs;
  int x_stride, out_stride, residual_stride;  // elements from row to row; in tiles: from one 64 columns to the next
  float epsilon;
};

// A tile of N weight rows: with GLU, 8 gate rows and the 8 up rows of the same outputs alternate.
FUNCTION int weight_row(int first_output, int n, int outputs) {
  if (EPILOGUE != GLU) return first_output + n;
  return (n & 8 ? outputs : 0) + first_output + (n >> 4) * 8 + (n & 7);
}
// Where output n of the tile finds its sum in a row of the tile; the up sum of a GLU is 8 places further.
FUNCTION int place_of_output(int n) { return EPILOGUE == GLU ? (n >> 3) * 16 + (n & 7) : n; }

// The scales of the weight rows of an output: its own or its gate's, and its up row's.
FUNCTION float2 scales_of(const Arguments& p, int output) {
  if (!FP8) return make_float2(1.f, 1.f);
  return make_float2(load_float_early(p.weight_scale + output),
                     EPILOGUE == GLU ? load_float_early(p.weight_scale + p.outputs + output) : 1.f);
}
FUNCTION float scaled(float sum, float scale) { return FP8 ? sum * scale : sum; }

// Two e4m3 in the bytes 1 and 3 of `pair`, as bf16. Exponent and mantissa move to their places; the exponent's bias is
// 7 instead of 127, so the result is multiplied by 2^120, which is exact, also for subnormal numbers.
FUNCTION u32 widened_e4m3(u32 pair) {
  constexpr u32 TWO_TO_120 = 0x7b807b80;
  return multiply_pairs((pair & 0x80008000u) | ((pair >> 4) & 0x07f007f0u), TWO_TO_120);
}
FUNCTION uint4 widened_e4m3(u32 first, u32 second) {  // eight of them
  return make_uint4(widened_e4m3(select_bytes(first, 0x1404)), widened_e4m3(select_bytes(first, 0x3424)),
                    widened_e4m3(select_bytes(second, 0x1404)), widened_e4m3(select_bytes(second, 0x3424)));
}
// A lane's weights of the first or the second 32 columns of a group.
FUNCTION uint4 half_of_group(const uint4& group, int half) {
  return half ? widened_e4m3(group.z, group.w) : widened_e4m3(group.x, group.y);
}

// Offset in bytes of 16 bytes of a row. Eight lanes read at a time: 4 adjacent pieces of two adjacent rows. They are in
// different banks because odd rows have each four pieces exchanged with the next four.
template <int ROW_BYTES>
FUNCTION int swizzled(int row, int piece) {
  static_assert(ROW_BYTES % 128 == 0, "rows start at the same bank");
  return row * ROW_BYTES + ((piece ^ ((row & 1) << 2)) << 4);
}

// Two instructions of a chain: rows g and g + 8 of x, row g of the weights, 32 columns.
FUNCTION void add_step(float (&sum)[4], const uint4& upper, const uint4& lower, const uint4& weight) {
  mma(sum, upper.x, lower.x, upper.y, lower.y, weight.x, weight.y);
  mma(sum, upper.z, lower.z, upper.w, lower.w, weight.z, weight.w);
}

FUNCTION float rounded(float x) { return low(pack(x, 0.f)); }

// The value before the last rounding; `up` and `other` (residual or bias) where the epilogue has them.
FUNCTION float finished(float total, float up, float other) {
  if (EPILOGUE == BIAS) return total + other;
  if (EPILOGUE == RESIDUAL) return other + rounded(total);
  if (EPILOGUE == GLU) {
    const float gate = rounded(total);
    return rounded(quotient(gate, 1.f + exponential(-gate))) * rounded(up);
  }
  return total;
}
