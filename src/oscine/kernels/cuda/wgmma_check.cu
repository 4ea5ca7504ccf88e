// Do wgmma and mma add up the products of 16 columns alike? PTX leaves the order and the roundings inside an instruction
// open. Each block has random operands; both instructions get them as the products do, mma in the roles of
// linear_few.cu and wgmma in those of linear_tiled.cu.
//
// Defines: INPUTS (a multiple of 64), INSTRUCTIONS (16 columns each, at most INPUTS / 16).
#include "device.cuh"
#include "operand.cuh"

constexpr int ROWS = 32, WEIGHT_ROWS = 64, STAGES = INPUTS / OPERAND_WIDTH;
static_assert(INPUTS % OPERAND_WIDTH == 0 && INSTRUCTIONS * 16 <= INPUTS, "whole stages");

struct Arguments {
  const u16* x;       // [blocks][ROWS][INPUTS]
  const u16* weight;  // [blocks][WEIGHT_ROWS][INPUTS]
  float* by_mma;      // [blocks][ROWS][WEIGHT_ROWS]
  float* by_wgmma;
};

KERNEL(wgmma_check, 128) {
  const Arguments& p = arguments;
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const u16* const x = p.x + (u64)block_x() * ROWS * INPUTS;
  const u16* const weight = p.weight + ((u64)block_x() * WEIGHT_ROWS + warp * 16 + g) * INPUTS + t * 8;
  let_next_start();
  wait_for_previous();
  float by_mma[2][2][4] = {};  // [16 rows of x][8 weight rows]
  float by_wgmma[ROWS / 2];
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++) {
    const int column = stage * OPERAND_WIDTH;
    if (thread < ROWS * 2) {
      const int row = thread / 2, piece = thread % 2 * 4;
#pragma unroll
      for (int i = 0; i < 4; i++)
        *(uint4*)operand_piece(shared_memory(), row, piece + i) = load(x + row * INPUTS + column + (piece + i) * 8);
      transpose_operand(shared_memory(), row, piece);
    }
    uint4 weights[2][2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      weights[half][0] = load(weight + column + half * 32);
      weights[half][1] = load(weight + 8 * INPUTS + column + half * 32);
    }
    publish_operands();
    sync_block();
    begin_products();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint4 &upper = weights[half][0], &lower = weights[half][1];
      const int instruction = stage * 4 + half * 2;
      if (instruction < INSTRUCTIONS)
        wgmma<ROWS>(by_wgmma, upper.x, lower.x, upper.y, lower.y, operand_descriptor(shared_memory(), half * 32),
                    instruction > 0);
      if (instruction + 1 < INSTRUCTIONS)
        wgmma<ROWS>(by_wgmma, upper.z, lower.z, upper.w, lower.w, operand_descriptor(shared_memory(), half * 32 + 16),
                    true);
#pragma unroll
      for (int tile = 0; tile < 2; tile++) {
        const u16* const own = x + (tile * 16 + g) * INPUTS + column + half * 32 + t * 8;
        const uint4 a = load(own), b = load(own + 8 * INPUTS);
        if (instruction < INSTRUCTIONS) {
          mma(by_mma[tile][0], a.x, b.x, a.y, b.y, upper.x, upper.y);
          mma(by_mma[tile][1], a.x, b.x, a.y, b.y, lower.x, lower.y);
        }
        if (instruction + 1 < INSTRUCTIONS) {
          mma(by_mma[tile][0], a.z, b.z, a.w, b.w, upper.z, upper.w);
          mma(by_mma[tile][1], a.z, b.z, a.w, b.w, lower.z, lower.w);
        }
      }
    }
    commit_products();
    wait_for_products<0>(by_wgmma);
    sync_block();
  }
  float* const mma_out = p.by_mma + (u64)block_x() * ROWS * WEIGHT_ROWS + warp * 16;
  float* const wgmma_out = p.by_wgmma + (u64)block_x() * ROWS * WEIGHT_ROWS + warp * 16;
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++)
    wgmma_out[(i / 4 * 8 + 2 * t + i % 2) * WEIGHT_ROWS + g + (i & 2) * 4] = by_wgmma[i];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int tile = 0; tile < 2; tile++)
#pragma unroll
      for (int n = 0; n < 2; n++)
        mma_out[(tile * 16 + g + i / 2 * 8) * WEIGHT_ROWS + n * 8 + 2 * t + i % 2] = by_mma[tile][n][i];
}
