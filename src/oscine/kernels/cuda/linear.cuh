// The parts that the two matrix products share: the order of the sums, the layout of operands, the end of a product.
//
//     y = bf16(x @ weight.T + bias)                 fp32 sums, one rounding with the bias
//     GLU:       y = bf16(bf16(silu(gate)) * up), gate and up rounded to bf16 first; weight holds gate, then up rows
//     RESIDUAL:  y = bf16(residual + y)
//
// Order of the sums, the same for every number of rows:
//  * K is divided into SEGMENTS pieces. The products of a segment are added by a chain of mma instructions, 32 columns
//    by two of them: the first takes columns 8t .. 8t + 3 of lane t (t = 0 .. 3), the second columns 8t + 4 .. 8t + 7.
//    So a lane's operands are 16 adjacent bytes of a row.
//  * A quarter of K is the sum of its segments, added in order; the total is the sum of the four quarters, in order.
// Few rows: one warp per segment. Many rows: one warp runs through the segments of a quarter (or of all quarters) and
// keeps the same partial sums. So a row's bits do not depend on the number of rows.
#include "device.cuh"

#define PLAIN 0
#define RESIDUAL 1
#define GLU 2
#define BIAS 3

static_assert(INPUTS % (SEGMENTS * 32) == 0, "a segment has whole steps of 32 columns");
static_assert(SEGMENTS % 4 == 0, "a quarter has whole segments");

constexpr int SEGMENT = INPUTS / SEGMENTS;  // columns
constexpr int STEPS = SEGMENT / 32;
constexpr int SEGMENTS_OF_QUARTER = SEGMENTS / 4;

struct Arguments {
  const u16* x;         // [rows][INPUTS]
  const u16* weight;    // [outputs][INPUTS], with GLU [2 outputs][INPUTS]
  u16* out;             // [rows][outputs]
  const u16* residual;  // [rows][outputs]; may be `out`
  const u16* bias;      // [outputs]
  const u16* scale;     // [INPUTS]: weight of the RMSNorm of x
  int rows, outputs;
  int x_stride, out_stride, residual_stride;  // elements from row to row
  float epsilon;
};

// A tile of N weight rows: with GLU, 8 gate rows and the 8 up rows of the same outputs alternate.
FUNCTION int weight_row(int first_output, int n, int outputs) {
  if (EPILOGUE != GLU) return first_output + n;
  return (n & 8 ? outputs : 0) + first_output + (n >> 4) * 8 + (n & 7);
}
// Where output n of the tile finds its sum in a row of the tile; the up sum of a GLU is 8 places further.
FUNCTION int place_of_output(int n) { return EPILOGUE == GLU ? (n >> 3) * 16 + (n & 7) : n; }

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
