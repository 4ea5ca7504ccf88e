// Runs the CUDA kernels on a CPU: the functions of device.cuh in plain C++, every GPU thread a fiber.
//
// It is strict where a GPU is lenient by luck. Asynchronous copies happen only when a thread waits for them. Threads
// run in an order that a seed chooses, so a missing barrier shows. Inputs that an earlier kernel makes appear only at
// the first `wait_for_previous`. Shared memory starts as NaN. A barrier that not all threads reach is an error, not a
// hang.
#define OSCINE_DEVICE_CUH
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(8) uint2 {
  u32 x, y;
};
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#define FUNCTION inline

struct Launch {  // mirrored by emulation.py
  int grid_x, grid_y, grid_z, threads, cluster, shared_bytes, seed, late_count;
  void* const* late_to;  // inputs of an earlier kernel: copied at the first wait
  const void* const* late_from;
  const u64* late_bytes;
};

// Saves the registers that a call must keep and the stack pointer, and goes on with another stack. The saved words are
// SAVED_WORDS, and the word RETURN_WORD of them is the address where it goes on.
extern "C" void switch_stacks(void** from, void* to) asm("emulator_switch_stacks");
#if defined(__x86_64__)
constexpr int SAVED_WORDS = 8, RETURN_WORD = 6;  // the last word aligns the stack
asm(R"(
.text
.type emulator_switch_stacks, @function
emulator_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch_stacks, .-emulator_switch_stacks
)");
#elif defined(__aarch64__)
constexpr int SAVED_WORDS = 20, RETURN_WORD = 11;
asm(R"(
.text
.type emulator_switch_stacks, %function
emulator_switch_stacks:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emulator_switch_stacks, .-emulator_switch_stacks
)");
#else
#error "the emulator switches stacks in the assembly of x86-64 and AArch64"
#endif

namespace emulator {
constexpr size_t STACK = 128 << 10;
struct Copy {
  void* to;
  const void* from;
};
struct Product {  // of wgmma
  float* sum;
  int columns;
  u32 a[4];
  u64 b;
  bool add;
};
struct Thread {
  void* stack_pointer;
  std::vector<char> stack;
  int index, block;  // block: of the cluster
  bool ended = false;
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
  std::vector<std::pair<void*, uint4>> unpublished;  // stores for tensor cores
  std::vector<std::vector<Product>> product_groups;
  std::vector<Product> products;  // not committed
  bool products_begun = false;
  u64 arrived_at[16] = {};  // the generation of each named barrier, plus one
};
struct Barrier {
  int expected = 0, arrived = 0;
  u64 generation = 0;
};
struct Exchange {
  Barrier barrier;
  u32 a[32][4], b[32][2];
  double value[32];
};
struct Arrival {  // a barrier of copies
  struct Pending {
    void* to;
    const void* from;
    int bytes;
  };
  int expected = 0, requested = 0, turns = 0;
  std::vector<Pending> copies;
};
struct Block {
  int x, y, z;
  std::vector<char> memory;
  char* shared;
  Barrier barrier, named[16];
  std::vector<Exchange> warps;
  std::map<u64*, Arrival> arrivals;
};

static std::vector<Thread> threads;
static std::vector<Block> blocks;
static Barrier cluster_barrier;
static void* scheduler;  // its stack pointer
static Thread* current;
static const Launch* launch;
static void (*body)(const void*);
static const void* body_arguments;
static bool waited, progress;
static const char* failure;  // the first one ends the launch

[[noreturn]] inline void fail(const char* what) {
  failure = what;
  for (;;) switch_stacks(&current->stack_pointer, scheduler);
}
inline void yield() { switch_stacks(&current->stack_pointer, scheduler); }
inline void arrive(Barrier& barrier) {
  const u64 generation = barrier.generation;
  progress = true;
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    barrier.generation++;
    return;
  }
  while (barrier.generation == generation) yield();
  progress = true;
}
inline Block& block() { return blocks[current->block]; }
inline Exchange& warp() { return block().warps[current->index / 32]; }
inline int lane() { return current->index % 32; }
inline void enter() {
  body(body_arguments);
  if (!current->open.empty() ||
      std::any_of(current->groups.begin(), current->groups.end(), [](auto& g) { return !g.empty(); }))
    fail("a thread ended with copies under way");
  if (!current->unpublished.empty()) fail("a thread ended with stores that it did not publish");
  if (!current->products.empty() ||
      std::any_of(current->product_groups.begin(), current->product_groups.end(), [](auto& g) { return !g.empty(); }))
    fail("a thread ended with products under way");
  current->ended = true;
  // Threads that ended no longer take part in barriers.
  progress = true;
  for (Barrier* barrier : {&warp().barrier, &block().barrier, &cluster_barrier}) {
    barrier->expected--;
    if (barrier->expected && barrier->arrived == barrier->expected) barrier->arrived = 0, barrier->generation++;
  }
  if (!block().barrier.expected) {
    const char *end = block().shared + launch->shared_bytes, *past = block().memory.data() + block().memory.size();
    if (std::any_of(end, past, [](char byte) { return byte != (char)0xff; })) fail("a store outside of shared memory");
    // A block that has ended loses its memory; others of the cluster must not read it any more.
    std::fill(block().memory.begin(), block().memory.end(), (char)0xff);
  }
  switch_stacks(&current->stack_pointer, scheduler);
}

inline void run_cluster(int first_x, int y, int z, u32& random) {
  const Launch& l = *launch;
  blocks.assign(l.cluster, Block());
  cluster_barrier = Barrier{l.cluster * l.threads, 0, 0};
  for (int b = 0; b < l.cluster; b++) {
    Block& block = blocks[b];
    block.x = first_x + b, block.y = y, block.z = z;
    block.memory.assign(l.shared_bytes + 2048, (char)0xff);  // aligned, and 1 KB or more after it
    block.shared = (char*)(((uintptr_t)block.memory.data() + 1023) & ~(uintptr_t)1023);
    block.barrier.expected = l.threads;
    block.warps.assign(l.threads / 32, Exchange());
    for (auto& warp : block.warps) warp.barrier.expected = 32;
  }
  const int count = l.cluster * l.threads;
  if ((int)threads.size() < count) threads.resize(count);
  std::vector<int> order(count);
  for (int i = 0; i < count; i++) {
    Thread& thread = threads[i];
    thread.stack.resize(STACK);
    thread.index = i % l.threads, thread.block = i / l.threads;
    thread.ended = false;
    thread.groups.clear(), thread.open.clear();
    thread.unpublished.clear(), thread.product_groups.clear(), thread.products.clear();
    thread.products_begun = false;
    std::fill(thread.arrived_at, thread.arrived_at + 16, 0);
    // A new thread "returns" to enter().
    void** top = (void**)((uintptr_t)(thread.stack.data() + STACK) & ~(uintptr_t)15);
    thread.stack_pointer = top - SAVED_WORDS;
    top[RETURN_WORD - SAVED_WORDS] = (void*)enter;
    order[i] = i;
  }
  if (l.seed == 1) std::reverse(order.begin(), order.end());
  if (l.seed > 1)
    for (int i = count; i > 1; i--) {
      random = random * 1664525u + 1013904223u;
      std::swap(order[i - 1], order[(random >> 8) % i]);
    }
  // Some orders let a few warps run far ahead of the others, as far as barriers let them.
  bool all = true;
  for (int running = count; running;) {
    progress = false;
    running = 0;
    u32 chosen = ~0u;
    if (l.seed > 1 && !all) random = random * 1664525u + 1013904223u, chosen = random >> 8;
    for (int i : order)
      if (!threads[i].ended && !(chosen >> i / 32 % 24 & 1))
        running++;
      else if (!threads[i].ended) {
        current = &threads[i];
        switch_stacks(&scheduler, current->stack_pointer);
        if (failure) return;
        running += !threads[i].ended;
      }
    const bool stuck = all && !progress;
    all = !progress;
    if (running && stuck) {
      failure = "threads wait for a barrier that others never reach";
      return;
    }
  }
}

inline const char* run(const Launch& l, void (*kernel)(const void*), const void* arguments) {
  launch = &l, body = kernel, body_arguments = arguments, waited = false, failure = nullptr;
  u32 random = l.seed;
  for (int z = 0; z < l.grid_z; z++)
    for (int y = 0; y < l.grid_y; y++)
      for (int x = 0; x < l.grid_x && !failure; x += l.cluster) run_cluster(x, y, z, random);
  return failure;
}
}  // namespace emulator

#define KERNEL(name, thread_count)                                                            \
  static void kernel_body(const Arguments&);                                                  \
  static void kernel_of(const void* arguments) { kernel_body(*(const Arguments*)arguments); } \
  extern "C" int threads_of_block() { return thread_count; }                                  \
  extern "C" const char* emulate(const Arguments* arguments, const Launch* launch) {          \
    return emulator::run(*launch, kernel_of, arguments);                                      \
  }                                                                                           \
  static void kernel_body(const Arguments& arguments)
#define KERNEL_OF_BLOCKS(name, thread_count, blocks) KERNEL(name, thread_count)

inline void let_next_start() {}
inline void wait_for_previous() {
  using namespace emulator;
  if (!waited)
    for (int i = 0; i < launch->late_count; i++)
      std::memcpy(launch->late_to[i], launch->late_from[i], launch->late_bytes[i]);
  waited = true;
}
template <typename T>
T read(const void* from) {
  if ((uintptr_t)from % sizeof(T)) emulator::fail("unaligned load");
  return *(const T*)from;
}
inline uint4 load_early(const void* from) { return read<uint4>(from); }
inline uint4 load_early_if(bool wanted, const void* from) { return wanted ? read<uint4>(from) : uint4{}; }
inline u64 load_index_early(const u64* from) { return read<u64>(from); }
inline int load_int_early(const int* from) { return read<int>(from); }
inline float load_float_early(const float* from) { return read<float>(from); }
inline uint4 load(const void* from) { return read<uint4>(from); }
inline uint2 load_two_pairs(const void* from) { return read<uint2>(from); }
inline u16 load_one(const u16* from) { return read<u16>(from); }

inline char* shared_memory() { return emulator::block().shared; }
inline void copy_async(void* to, const void* from, bool wanted = true) {
  if (!wanted) return;
  emulator::Block& block = emulator::block();
  const char* end = (char*)to + 16;
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || to < block.shared ||
      end > block.shared + emulator::launch->shared_bytes)
    emulator::fail("a copy outside of shared memory, or unaligned");
  emulator::current->open.push_back({to, from});
}
inline void commit_copies() {
  emulator::current->groups.push_back(emulator::current->open);
  emulator::current->open.clear();
}
template <int PENDING>
void wait_for_copies() {
  auto& groups = emulator::current->groups;
  for (int i = 0; i + PENDING < (int)groups.size(); i++) {
    for (auto& copy : groups[i]) std::memcpy(copy.to, copy.from, 16);
    groups[i].clear();
  }
}

// Copies that arrive at a barrier happen when somebody waits for it, or, with an odd seed, when they are requested.
inline emulator::Arrival& arrival_at(u64* at) {
  if ((uintptr_t)at % 8 || (char*)(at + 1) > emulator::block().shared + emulator::launch->shared_bytes)
    emulator::fail("an arrival outside of shared memory");
  return emulator::block().arrivals[at];
}
inline void make_arrival(u64* at, int count) { arrival_at(at).expected = count; }
inline void publish_arrivals() {}
inline void arrive_with(u64* at, const std::vector<emulator::Copy>& copies, int bytes) {
  emulator::Arrival& arrival = arrival_at(at);
  if (!arrival.expected || arrival.requested == arrival.expected) emulator::fail("more arrivals than the barrier expects");
  for (auto& copy : copies) {
    arrival.copies.push_back({copy.to, copy.from, bytes});
    if (emulator::launch->seed % 2) std::memcpy(copy.to, copy.from, bytes);
  }
  arrival.requested++;
  emulator::progress = true;
}
inline void arrive_after_copies(u64* at) {
  arrive_with(at, emulator::current->open, 16);
  emulator::current->open.clear();
}
inline void copy_bulk(void* to, const void* from, int bytes, u64* at) {
  emulator::Block& block = emulator::block();
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16 || to < block.shared ||
      (char*)to + bytes > block.shared + emulator::launch->shared_bytes)
    emulator::fail("a copy outside of shared memory, or unaligned");
  arrive_with(at, {{to, from}}, bytes);
}
inline void wait_for_arrival(u64* at, int turn) {
  emulator::Arrival& arrival = arrival_at(at);
  if (!arrival.expected) emulator::fail("a wait for an arrival that nobody made");
  while (true) {
    if (arrival.requested == arrival.expected) {
      for (auto& copy : arrival.copies) std::memcpy(copy.to, copy.from, copy.bytes);
      arrival.copies.clear();
      arrival.requested = 0;
      arrival.turns++;
    }
    if ((arrival.turns & 1) != turn) break;
    emulator::yield();
  }
  emulator::progress = true;
}

inline int thread_index() { return emulator::current->index; }
inline int block_x() { return emulator::block().x; }
inline int block_y() { return emulator::block().y; }
inline void sync_block() { emulator::arrive(emulator::block().barrier); }
inline void sync_warp() { emulator::arrive(emulator::warp().barrier); }
inline bool arrived_last(int id, int threads) {  // at a named barrier
  emulator::Barrier& barrier = emulator::block().named[id];
  if (!id || id > 15 || threads % 32 || (barrier.arrived && barrier.expected != threads))
    emulator::fail("a barrier with another number of threads");
  if (emulator::current->arrived_at[id] == barrier.generation + 1) emulator::fail("a thread arrived twice at a barrier");
  emulator::current->arrived_at[id] = barrier.generation + 1;
  barrier.expected = threads;
  emulator::progress = true;
  if (++barrier.arrived < threads) return false;
  barrier.arrived = 0;
  barrier.generation++;
  return true;
}
inline void arrive_at(int id, int threads) { arrived_last(id, threads); }
inline void sync_at(int id, int threads) {
  emulator::Barrier& barrier = emulator::block().named[id];
  const u64 generation = barrier.generation;
  if (arrived_last(id, threads)) return;
  while (barrier.generation == generation) emulator::yield();
  emulator::progress = true;
}
template <int COUNT>
void give_registers_up_to() {}
template <int COUNT>
void take_registers_up_to() {}
inline void sync_cluster() { emulator::arrive(emulator::cluster_barrier); }
inline float4 load_from_block(const float* own, int rank) {
  const char* there = emulator::blocks[rank].shared + ((const char*)own - emulator::block().shared);
  return read<float4>(there);
}
inline double shuffle_from(double value, int from) {
  auto& warp = emulator::warp();
  warp.value[emulator::lane()] = value;
  sync_warp();
  const double result = warp.value[from];
  sync_warp();
  return result;
}
inline float shuffle_from(float value, int from) { return (float)shuffle_from((double)value, from); }
inline double shuffle_up(double value, int distance) {
  const int from = emulator::lane() - distance;
  return shuffle_from(value, from < 0 ? emulator::lane() : from);
}
template <typename Merge>
u32 merged_over_warp(u32 value, Merge merge) {
  auto& warp = emulator::warp();
  warp.value[emulator::lane()] = value;
  sync_warp();
  u32 result = (u32)warp.value[0];
  for (int i = 1; i < 32; i++) result = merge(result, (u32)warp.value[i]);
  sync_warp();
  return result;
}
inline u32 warp_sum(u32 value) {
  return merged_over_warp(value, [](u32 a, u32 b) { return a + b; });
}
inline u32 warp_largest(u32 value) {
  return merged_over_warp(value, [](u32 a, u32 b) { return a > b ? a : b; });
}
inline float shuffle_xor(float value, int mask) { return shuffle_from(value, emulator::lane() ^ mask); }
inline u32 shuffle_xor(u32 value, int mask) { return (u32)shuffle_from((double)value, emulator::lane() ^ mask); }

inline float of_bits(u32 bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline u32 bits_of(float f) {
  u32 bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}
inline double double_of_bits(u64 bits) {
  double d;
  std::memcpy(&d, &bits, 8);
  return d;
}
inline u64 bits_of_double(double d) {
  u64 bits;
  std::memcpy(&bits, &d, 8);
  return bits;
}
inline u32 multiply_high(u32 a, u32 b) { return (u64)a * b >> 32; }
inline float divide(float a, float b) { return a / b; }
inline float low(u32 pair) { return of_bits(pair << 16); }
inline float high(u32 pair) { return of_bits(pair & 0xffff0000u); }
inline float widened(u16 one) { return of_bits((u32)one << 16); }
inline u32 nearest(float f) {
  const u32 bits = bits_of(f);
  return f != f ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
inline u32 pack(float lower, float upper) { return nearest(lower) | nearest(upper) << 16; }
inline u32 multiply_pairs(u32 a, u32 b) { return pack(low(a) * low(b), high(a) * high(b)); }
inline u32 select_bytes(u32 v, u32 digits) {
  u32 out = 0;
  for (int i = 0; i < 4; i++) {
    const u32 digit = digits >> 4 * i & 7;
    out |= (digit < 4 ? v >> 8 * digit & 255 : 0) << 8 * i;
  }
  return out;
}
inline u32 lower_halves(u32 a, u32 b) { return (a & 0xffffu) | b << 16; }
inline u32 upper_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }
inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline float inverse_root(float x) { return 1.f / std::sqrt(x); }
inline float exponential(float x) { return std::exp(x); }
inline float power_of_two(float x) { return x < -126.f ? 0.f : std::exp2(x); }
inline float quotient(float a, float b) { return a / b; }
inline float larger(float a, float b) { return std::fmax(a, b); }

// The layout of PTX's m16n8k16, written from its definition: element (row, k) of A is in the lane 4 (row % 8) + (k % 8)
// / 2, register (row >= 8) + 2 (k >= 8), half k % 2; element (k, column) of B in the lane 4 column + (k % 8) / 2,
// register (k >= 8), half k % 2.
inline void mma(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  auto& warp = emulator::warp();
  const int lane = emulator::lane();
  const u32 a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  std::copy(a, a + 4, warp.a[lane]);
  std::copy(b, b + 2, warp.b[lane]);
  sync_warp();
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + (i / 2) * 8, column = lane % 4 * 2 + i % 2;
    double total = sum[i];
    for (int k = 0; k < 16; k++) {
      const u32 x = warp.a[4 * (row % 8) + k % 8 / 2][(row >= 8) + 2 * (k >= 8)];
      const u32 w = warp.b[4 * column + k % 8 / 2][k >= 8];
      total += (double)(k % 2 ? high(x) : low(x)) * (k % 2 ? high(w) : low(w));
    }
    sum[i] = (float)total;
  }
  sync_warp();
}

// wgmma. Stores for tensor cores happen when they are published. Products happen when they are waited for, or, with an
// odd seed, when they are issued: what they read must stay the same in between.
inline void store_operand(void* to, const uint4& v) { emulator::current->unpublished.push_back({to, v}); }
inline void publish_operands() {
  for (auto& [to, v] : emulator::current->unpublished) *(uint4*)to = v;
  emulator::current->unpublished.clear();
}
// Fields of PTX's matrix descriptor: bits 0-13 address, 16-29 leading offset (not used with swizzles), 32-45 offset of
// the next eight rows, 49-51 base offset, 62-63 swizzle (1: 128 bytes). Addresses and offsets are divided by 16.
inline u32 shared_address(const void* p) { return (const char*)p - emulator::block().shared; }
inline const u16* operand_at(u64 descriptor, int row, int k) {
  u64 at = (descriptor & 0x3fff) << 4;
  at += row / 8 * ((descriptor >> 32 & 0x3fff) << 4) + row % 8 * 128 + k * 2;
  at ^= (at >> 7 & 7) << 4;  // the swizzle is one of addresses, not of rows
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) || at + 2 > (u64)emulator::launch->shared_bytes)
    emulator::fail("a wrong descriptor");
  return (const u16*)(emulator::block().shared + at);
}
inline void run_product(const emulator::Product& product) {
  auto& warp = emulator::warp();
  const int lane = emulator::lane();
  std::copy(product.a, product.a + 4, warp.a[lane]);
  sync_warp();
  for (int i = 0; i < product.columns / 2; i++) {
    const int row = lane / 4 + (i / 2 % 2) * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double total = product.add ? product.sum[i] : 0.;
    for (int k = 0; k < 16; k++) {
      const u32 w = warp.a[4 * (row % 8) + k % 8 / 2][(row >= 8) + 2 * (k >= 8)];
      total += (double)(k % 2 ? high(w) : low(w)) * widened(*operand_at(product.b, column, k));
    }
    product.sum[i] = (float)total;
  }
  sync_warp();
}
inline void begin_products() { emulator::current->products_begun = true; }
template <int N>
void wgmma(float (&sum)[N / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, bool add) {
  if (!emulator::current->products_begun) emulator::fail("a product without begin_products");
  const emulator::Product product = {sum, N, {a0, a1, a2, a3}, b, add};
  if (emulator::launch->seed % 2)
    run_product(product);
  else
    emulator::current->products.push_back(product);
}
inline void commit_products() {
  emulator::current->product_groups.push_back(emulator::current->products);
  emulator::current->products.clear();
  emulator::current->products_begun = false;
}
template <int PENDING>
void wait_for_products() {
  auto& groups = emulator::current->product_groups;
  for (int i = 0; i + PENDING < (int)groups.size(); i++) {
    for (auto& product : groups[i]) run_product(product);
    groups[i].clear();
  }
}
template <int PENDING, int COUNT>
void wait_for_products(float (&)[COUNT]) {
  wait_for_products<PENDING>();
}
