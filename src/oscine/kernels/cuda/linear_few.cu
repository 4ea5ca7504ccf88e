// Matrix product for up to 8 or 16 rows, with an RMSNorm of x before it if NORM (formula, order of sums: linear.cuh).
//
// The time of this kernel is the time to read the weights. A block has TILES * 8 weight rows and all of K; each of its
// SEGMENTS warps requests its piece of these rows before it waits for the kernel that makes x, and keeps them in
// registers. After the wait only x, from L2, and one reduction remain. x passes through a ring in shared memory that
// belongs to the warp: no barrier of the block until the partial sums meet (or, with NORM, the sums of squares).
// Registers are for weights: two blocks of a multiprocessor share them, so that one requests weights while the other
// computes.
//
// Defines: INPUTS, SEGMENTS (warps), TILES (8 weight rows each), ROWS (8 or 16), NORM, EPILOGUE, FP8.
#include "linear.cuh"
#include "norm.cuh"

static_assert(ROWS == 8 || ROWS == 16, "one row tile of the mma, or its upper half");
static_assert(EPILOGUE != GLU || TILES % 2 == 0, "a gate tile has its up tile");
constexpr int PART = SEGMENT < 128 ? SEGMENT : 128;  // columns of a ring slot
constexpr int PARTS = SEGMENT / PART;
constexpr int PART_STEPS = PART / 32;
constexpr int PIECES = PART / 8;  // of 16 bytes, in a row of a slot
constexpr int ROWS_AT_A_TIME = 32 / PIECES;
constexpr int SLOTS = PARTS < 3 ? PARTS : (ROWS == 8 ? 3 : 2);
constexpr int COLUMNS = TILES * 8;  // of a tile of sums
constexpr int OUTPUTS_OF_BLOCK = EPILOGUE == GLU ? COLUMNS / 2 : COLUMNS;
constexpr int THREADS = SEGMENTS * 32;
constexpr int ROUNDS = (ROWS * OUTPUTS_OF_BLOCK + THREADS - 1) / THREADS;
static_assert(SEGMENT % PART == 0 && PART % 64 == 0, "whole slots, whose rows are a multiple of 128 bytes");
static_assert(ROWS_AT_A_TIME % 2 == 0, "a lane copies even rows or odd ones: its swizzle is constant");
static_assert(!NORM || PARTS == 1, "the norm needs all of the warp's x at once");

// Bytes of a warp's ring, which later holds its partial sums. The launcher allocates SEGMENTS of them and the squares.
FUNCTION int ring_bytes(int rows) {
  const int ring = SLOTS * rows * PART * 2, sums = rows * COLUMNS * 4;
  return ring > sums ? ring : sums;
}

FUNCTION float sum_of_segments(const char* memory, int bytes, int place) {
  float total = 0.f;
#pragma unroll
  for (int quarter = 0; quarter < 4; quarter++) {
    float part = 0.f;
#pragma unroll
    for (int i = 0; i < SEGMENTS_OF_QUARTER; i++) {
      const float sum = ((const float*)(memory + (quarter * SEGMENTS_OF_QUARTER + i) * bytes))[place];
      part = i ? part + sum : sum;
    }
    total = quarter ? total + part : part;
  }
  return total;
}

FUNCTION float inverse_of(const float* squares, int row, float epsilon) {
  float total = squares[row];
#pragma unroll
  for (int segment = 1; segment < SEGMENTS; segment++) total += squares[segment * ROWS + row];
  return inverse_root(total * (1.f / INPUTS) + epsilon);
}

// Two blocks at a time, unless one alone fills the registers with weights.
constexpr int LOADS = STEPS * WEIGHT_BYTES / 2;  // of 16 bytes, of a lane and a tile
constexpr int BLOCKS = THREADS * (TILES * LOADS * 4 + 32) * 2 <= 65536 ? 2 : 1;

KERNEL_OF_BLOCKS(linear_few, THREADS, BLOCKS) {
  const Arguments& p = arguments;
  const int warp = thread_index() / 32, lane = thread_index() % 32, g = lane / 4, t = lane % 4;
  const int first = block_x() * OUTPUTS_OF_BLOCK, bytes = ring_bytes(p.rows);
  char* const ring = shared_memory() + warp * bytes;
  float* const squares = (float*)(shared_memory() + SEGMENTS * bytes);  // [SEGMENTS][ROWS], then the scale: [INPUTS]
  char* const scale = (char*)(squares + SEGMENTS * ROWS) + warp * SEGMENT * 2;
  const int own_row = lane / PIECES, own_piece = lane % PIECES;  // of the copies of x, ROWS_AT_A_TIME rows each
  char* const target = ring + swizzled<PART * 2>(own_row, own_piece);
  const u16* const source = p.x + (u64)own_row * p.x_stride + warp * SEGMENT + own_piece * 8;

  let_next_start();
  uint4 weight[TILES][LOADS];
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    const u64 row = (u64)weight_row(first, tile * 8 + g, p.outputs) * INPUTS + warp * SEGMENT;
#pragma unroll
    for (int i = 0; i < LOADS; i++) weight[tile][i] = load_early(p.weight + row * WEIGHT_BYTES + t * 16 + i * 64);
  }
  float2 weight_scales[ROUNDS];
#pragma unroll
  for (int round = 0; round < ROUNDS; round++)
    weight_scales[round] = scales_of(p, first + (round * THREADS + thread_index()) % OUTPUTS_OF_BLOCK);
  if (NORM) {
    copy_async(scale + lane * 16, p.scale + warp * SEGMENT + lane * 8, lane < SEGMENT / 8);
    commit_copies();
  }
  wait_for_previous();

  auto request = [&](int part) {
    char* slot = target + (part % SLOTS) * p.rows * PART * 2;
#pragma unroll
    for (int row = 0; row < ROWS; row += ROWS_AT_A_TIME)
      copy_async(slot + row * PART * 2, source + (u64)row * p.x_stride + part * PART, own_row + row < p.rows);
    commit_copies();
  };
#pragma unroll
  for (int part = 0; part < SLOTS; part++) request(part);
  float other[ROUNDS];  // requested now, used at the end
#pragma unroll
  for (int round = 0; round < ROUNDS; round++) {
    const int i = round * THREADS + thread_index(), row = i / OUTPUTS_OF_BLOCK, n = i % OUTPUTS_OF_BLOCK;
    other[round] = 0.f;
    if (EPILOGUE == RESIDUAL && row < p.rows)
      other[round] = widened(load_one(p.residual + (u64)row * p.residual_stride + first + n));
    if (EPILOGUE == BIAS && row < p.rows) other[round] = widened(load_one(p.bias + first + n));
  }

  // Rows that do not exist repeat the last one; their sums are not stored.
  const int upper = g < p.rows ? g : p.rows - 1, lower = g + 8 < p.rows ? g + 8 : p.rows - 1;
  float sum[TILES][4];
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) sum[tile][0] = sum[tile][1] = sum[tile][2] = sum[tile][3] = 0.f;

#pragma unroll
  for (int part = 0; part < PARTS; part++) {
    // In flight: parts up to part + SLOTS - 1, as far as they exist.
    if (part + SLOTS <= PARTS)
      wait_for_copies<SLOTS - 1>();
    else if (part + SLOTS == PARTS + 1 && SLOTS > 1)
      wait_for_copies<(SLOTS > 1 ? SLOTS - 2 : 0)>();
    else
      wait_for_copies<0>();
    sync_warp();
    const char* slot = ring + (part % SLOTS) * p.rows * PART * 2;
    auto x_at = [&](int row, int step) { return *(const uint4*)(slot + swizzled<PART * 2>(row, step * 4 + t)); };
    float upper_inverse = 0.f, lower_inverse = 0.f;
    if (NORM) {
      float of_upper[2] = {0.f, 0.f}, of_lower[2] = {0.f, 0.f};
#pragma unroll
      for (int step = 0; step < STEPS; step++) {
        add_squares(of_upper, x_at(upper, step));
        if (ROWS == 16) add_squares(of_lower, x_at(lower, step));
      }
      const float upper_squares = sum_of_four_lanes(of_upper), lower_squares = sum_of_four_lanes(of_lower);
      if (t == 0) squares[warp * ROWS + g] = upper_squares;
      if (ROWS == 16 && t == 0) squares[warp * ROWS + g + 8] = lower_squares;
      sync_block();
      upper_inverse = inverse_of(squares, g, p.epsilon);
      if (ROWS == 16) lower_inverse = inverse_of(squares, g + 8, p.epsilon);
    }
#pragma unroll
    for (int step = 0; step < PART_STEPS; step++) {
      uint4 a = x_at(upper, step), b = make_uint4(0, 0, 0, 0);
      if (ROWS == 16) b = x_at(lower, step);
      if (NORM) {
        const uint4 scales = *(const uint4*)(scale + step * 64 + t * 16);
        a = normed(a, upper_inverse, scales);
        if (ROWS == 16) b = normed(b, lower_inverse, scales);
      }
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const int at = part * PART_STEPS + step;
        add_step(sum[tile], a, b, FP8 ? half_of_group(weight[tile][at / 2], at % 2) : weight[tile][FP8 ? 0 : at]);
      }
    }
    sync_warp();
    if (part + SLOTS < PARTS) request(part + SLOTS);
  }

  float* const mine = (float*)ring;  // [rows][COLUMNS], over the x that this warp no longer needs
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    if (g < p.rows) *(float2*)(mine + g * COLUMNS + tile * 8 + 2 * t) = make_float2(sum[tile][0], sum[tile][1]);
    if (ROWS == 16 && g + 8 < p.rows)
      *(float2*)(mine + (g + 8) * COLUMNS + tile * 8 + 2 * t) = make_float2(sum[tile][2], sum[tile][3]);
  }
  sync_block();
#pragma unroll
  for (int round = 0; round < ROUNDS; round++) {
    const int i = round * THREADS + thread_index(), row = i / OUTPUTS_OF_BLOCK, n = i % OUTPUTS_OF_BLOCK;
    if (row < p.rows) {
      const int place = row * COLUMNS + place_of_output(n);
      const float total = scaled(sum_of_segments(shared_memory(), bytes, place), weight_scales[round].x);
      const float up =
          EPILOGUE == GLU ? scaled(sum_of_segments(shared_memory(), bytes, place + 8), weight_scales[round].y) : 0.f;
      p.out[(u64)row * p.out_stride + first + n] = (u16)pack(finished(total, up, other[round]), 0.f);
    }
  }
}
