// What the kernels use of the GPU beyond plain C++. Every PTX instruction is here, so that a test can replace this file
// by an emulation (tests/kernels/cuda/emulator.h) and run the kernels on a CPU. No header is needed: NVRTC compiles the
// files alone.
//
// bf16 numbers are u16; two of them in a u32 are a pair, the lower half first. Kernels take one `struct Arguments`.
#ifndef OSCINE_DEVICE_CUH
#define OSCINE_DEVICE_CUH

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL(name, threads) \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Arguments arguments)
#define KERNEL_OF_BLOCKS(name, threads, blocks) /* at least so many at a time on a multiprocessor */ \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Arguments arguments)
#define FUNCTION __device__ __forceinline__

// ---------------------------------------------------------------- programmatic dependent launch
// Every kernel calls both. A kernel's `wait_for_previous` returns when the kernel before it has ended, which itself
// waited for the one before, and so on. Before the call a kernel may read only what was written before the last launch
// that was not programmatic, or before the last `sample` (weights, and what the comments of a kernel name), and it may
// write nothing.
FUNCTION void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
FUNCTION void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---------------------------------------------------------------- global memory
// A relaxed load: ptxas moves `ld.global.nc` below griddepcontrol.wait, but not this one. Not kept in L1: read once.
FUNCTION uint4 load_early(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
FUNCTION uint4 load_early_if(bool wanted, const void* from) {  // zero if not wanted; a predicate, not a branch
  uint4 v;
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %5, 0;\n"
      "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
      "@wanted ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"((u32)wanted));
  return v;
}
FUNCTION u64 load_index_early(const u64* from) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(from));
  return v;
}
FUNCTION int load_int_early(const int* from) {
  int v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
FUNCTION float load_float_early(const float* from) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(from));
  return v;
}
// From L2: another kernel has just written it.
FUNCTION uint4 load(const void* from) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
FUNCTION uint2 load_two_pairs(const void* from) {
  uint2 v;
  asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
  return v;
}
FUNCTION u16 load_one(const u16* from) {
  u16 v;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
  return v;
}

// ---------------------------------------------------------------- shared memory
extern __shared__ __align__(1024) char dynamic_shared_memory[];
FUNCTION char* shared_memory() { return dynamic_shared_memory; }
FUNCTION u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

FUNCTION void copy_async(void* to, const void* from, bool wanted = true) {  // 16 bytes; a predicate, not a branch
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n}"
      :
      : "r"(shared_address(to)), "l"(from), "r"((u32)wanted)
      : "memory");
}
FUNCTION void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>  // groups that may still be under way
FUNCTION void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Copies may arrive at a barrier in shared memory: a bulk copy of 16 n bytes, and the copies that a thread has requested
// with copy_async. One thread makes it, with the number of all that arrive; others see it after a barrier of the block.
// `turn` is 0 for its first, third .. use, 1 for the others.
FUNCTION void make_arrival(u64* at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(count) : "memory");
}
FUNCTION void arrive_after_copies(u64* at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(at)) : "memory");
}
FUNCTION void publish_arrivals() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FUNCTION void copy_bulk(void* to, const void* from, int bytes, u64* at) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(at)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(at))
               : "memory");
}
FUNCTION void wait_for_arrival(u64* at, int turn) {
  u32 arrived;
  do {
    asm volatile(
        "{\n.reg .pred arrived;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 arrived, [%1], %2;\n"
        "selp.u32 %0, 1, 0, arrived;\n}"
        : "=r"(arrived)
        : "r"(shared_address(at)), "r"(turn)
        : "memory");
  } while (!arrived);
}

// ---------------------------------------------------------------- blocks, clusters, warps
FUNCTION int thread_index() { return threadIdx.x; }
FUNCTION int block_x() { return blockIdx.x; }
FUNCTION int block_y() { return blockIdx.y; }
FUNCTION void sync_block() { __syncthreads(); }
FUNCTION void sync_warp() { __syncwarp(); }
// Barriers 1 to 15 of a block, for parts of its threads: `threads` is the number of those that arrive or synchronize.
FUNCTION void sync_at(int barrier, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
FUNCTION void arrive_at(int barrier, int threads) {  // does not wait
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Four warps together change the number of registers that each of their threads has.
template <int COUNT>
FUNCTION void give_registers_up_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
FUNCTION void take_registers_up_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
FUNCTION void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
FUNCTION float4 load_from_block(const float* own, int rank) {  // the same place in another block of the cluster
  u32 there;
  float4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}
FUNCTION float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
FUNCTION u32 shuffle_xor(u32 value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
FUNCTION float shuffle_from(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
FUNCTION double shuffle_from(double value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
FUNCTION double shuffle_up(double value, int distance) { return __shfl_up_sync(0xffffffffu, value, distance); }
FUNCTION u32 warp_sum(u32 value) { return __reduce_add_sync(0xffffffffu, value); }
FUNCTION u32 warp_largest(u32 value) { return __reduce_max_sync(0xffffffffu, value); }

// ---------------------------------------------------------------- arithmetic
FUNCTION float of_bits(u32 bits) { return __uint_as_float(bits); }
FUNCTION u32 bits_of(float x) { return __float_as_uint(x); }
FUNCTION double double_of_bits(u64 bits) { return __longlong_as_double((long long)bits); }
FUNCTION u64 bits_of_double(double x) { return (u64)__double_as_longlong(x); }
FUNCTION u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }
FUNCTION float divide(float a, float b) { return __fdiv_rn(a, b); }  // IEEE, unlike quotient()
FUNCTION float low(u32 pair) { return __uint_as_float(pair << 16); }
FUNCTION float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
FUNCTION float widened(u16 one) { return __uint_as_float((u32)one << 16); }
FUNCTION u32 pack(float lower, float upper) {  // round to nearest, ties to even
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
}
FUNCTION u32 multiply_pairs(u32 a, u32 b) {  // rounded like pack(): the product of two bf16 is exact in fp32
  u32 pair;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
// Byte i of the result is the byte of {v, 0} that digit i of `digits` (the lowest first) selects; 4 selects a zero.
FUNCTION u32 select_bytes(u32 v, u32 digits) { return __byte_perm(v, 0, digits); }
FUNCTION u32 lower_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }  // of two pairs
FUNCTION u32 upper_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }
FUNCTION float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FUNCTION float inverse_root(float x) { return rsqrtf(x); }
FUNCTION float exponential(float x) { return __expf(x); }
FUNCTION float power_of_two(float x) {  // 2^x; 0 where that is below the normal numbers
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FUNCTION float quotient(float a, float b) { return __fdividef(a, b); }
FUNCTION float larger(float a, float b) { return fmaxf(a, b); }

// sum[16 rows][8 columns] += a[16 rows][16 k] * b[16 k][8 columns]. With g = lane / 4 and t = lane % 4, a lane holds
//   a0: row g,     k 2t, 2t + 1        b0: k 2t, 2t + 1,     column g     sum[0], sum[1]: row g,     columns 2t, 2t + 1
//   a1: row g + 8, k 2t, 2t + 1        b1: k 2t + 8, 2t + 9, column g     sum[2], sum[3]: row g + 8, columns 2t, 2t + 1
//   a2: row g,     k 2t + 8, 2t + 9
//   a3: row g + 8, k 2t + 8, 2t + 9
FUNCTION void mma(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---------------------------------------------------------------- wgmma: products of four warps, asynchronous
// Tensor cores read operands in shared memory by a path of their own: threads publish what they wrote, then synchronize.
FUNCTION void store_operand(void* to, const uint4& v) { *(uint4*)to = v; }
FUNCTION void publish_operands() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FUNCTION void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FUNCTION void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until then, nobody may touch the sums, the registers of the operand a, and the memory of the operand b.
template <int PENDING, int COUNT>  // groups that may still be under way; `sums` are those of others
FUNCTION void wait_for_products(float (&sums)[COUNT]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");  // no use of a sum moves up
}
template <int PENDING>
FUNCTION void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// sum[64 rows][N columns] (+)= a[64 rows][16 k] * b[N columns][16 k]. Warp w of the four has rows 16 w .. 16 w + 15, and
// in them the lanes hold a and sum as with `mma`; sum[4 j ..] are columns 8 j .. 8 j + 7. `add`: to the sum so far.
#define OUTPUTS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define OUTPUTS_8(i) OUTPUTS_4(i), OUTPUTS_4(i + 4)
#define OUTPUTS_16(i) OUTPUTS_8(i), OUTPUTS_8(i + 8)
template <int N>
FUNCTION void wgmma(float (&sum)[N / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, bool add) {
  static_assert(N == 16 || N == 32 || N == 64 || N == 128, "written out below");
  if constexpr (N == 16) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.u32 adds, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7"
        "}, {%8,%9,%10,%11}, %12, adds, 1, 1, 0;\n}"
        : OUTPUTS_8(0)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"((u32)add)
        : "memory");
  } else if constexpr (N == 32) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.u32 adds, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, {%16,%17,%18,%19}, %20, adds, 1, 1, 0;\n}"
        : OUTPUTS_16(0)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"((u32)add)
        : "memory");
  } else if constexpr (N == 64) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.u32 adds, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, {%32,%33,%34,%35}, %36, adds, 1, 1, 0;\n}"
        : OUTPUTS_16(0), OUTPUTS_16(16)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"((u32)add)
        : "memory");
  } else if constexpr (N == 128) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.u32 adds, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
          "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
          "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, {%64,%65,%66,%67}, %68, adds, 1, 1, 0;\n}"
        : OUTPUTS_16(0), OUTPUTS_16(16), OUTPUTS_16(32), OUTPUTS_16(48)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"((u32)add)
        : "memory");
  }
}

#endif
