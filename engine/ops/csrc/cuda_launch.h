// What every CUDA launch has, and how a block finds its elements: one block for 1024 elements, whole grid, no
// loop. Measured: that is as fast as a copy, where loops over a grid of resident blocks are not.
#pragma once
#include "cuda_arithmetic.h"

constexpr int kThreads = 256;
constexpr int kPerThread = 4;
constexpr int kBlockNumel = kThreads * kPerThread;

struct Launch {
  Entry flat;  // the only tensor, where `table` is null
  const Entry* table;
  const int32_t* tensor_of_block;  // which entry of `table` a block belongs to
  const float* grad_scale;         // what gradients are multiplied by; null: 1
  const float* found_inf;          // not 0: leave everything as it is; null: 0
  double* partials;                // two a block, for kernels that sum
};

struct Place {
  Entry entry;
  int64_t first;  // this thread's first element
  int num;        // how many it has, 0 to 4
  bool whole;     // all four, and aligned for vector loads
};

FORMULA float scale_of(const Launch& launch) { return launch.grad_scale ? *launch.grad_scale : 1.0f; }
FORMULA bool is_skipped(const Launch& launch) { return launch.found_inf && *launch.found_inf != 0; }

FORMULA bool aligned(const Entry& e, int half_bytes, int state_bytes) {
  const unsigned long long states = (unsigned long long)e.state1 | (unsigned long long)e.state2;
  return ((unsigned long long)e.master & 15) == 0 && (states & (state_bytes - 1)) == 0 &&
         ((unsigned long long)e.grad & (half_bytes - 1)) == 0 && ((unsigned long long)e.out & 7) == 0;
}

template <class Grad, int kStateBytes = 4>
FORMULA Place place_of(const Launch& launch) {
  Place place;
  int64_t block = blockIdx.x;
  if (launch.table) {
    place.entry = launch.table[launch.tensor_of_block[block]];
    block -= place.entry.first_block;
  } else {
    place.entry = launch.flat;
  }
  place.first = block * kBlockNumel + threadIdx.x * kPerThread;
  const int64_t left = place.entry.numel - place.first;
  place.num = left >= kPerThread ? kPerThread : left > 0 ? int(left) : 0;
  place.whole =
      place.num == kPerThread && aligned(place.entry, 4 * sizeof(typename Grad::Element), 4 * kStateBytes);
  return place;
}

struct Float32 {
  typedef float Element;
  static FORMULA float widen(float x) { return x; }
};
struct BFloat16 {
  typedef uint16_t Element;
  static FORMULA float widen(uint16_t x) { return widen_bf16(x); }
  static FORMULA uint16_t narrow(float x) { return narrow_bf16(x); }
};
struct Float16 {
  typedef uint16_t Element;
  static FORMULA float widen(uint16_t x) { return widen_fp16(x); }
  static FORMULA uint16_t narrow(float x) { return narrow_fp16(x); }
};
struct None {
  static FORMULA uint16_t narrow(float) { return 0; }
};
struct SplitBFloat16 : BFloat16 {};
template <class Out>
constexpr bool writes = true;
template <>
constexpr bool writes<None> = false;
template <class Out>
constexpr bool splits = false;
template <>
constexpr bool splits<SplitBFloat16> = true;
template <class Out>
constexpr bool is_bf16 = splits<Out>;
template <>
constexpr bool is_bf16<BFloat16> = true;

// A thread's four elements of one stream.
struct Four {
  float x[kPerThread];
};

FORMULA Four load_floats(const float* from, const Place& p) {
  Four four = {};
  if (p.whole) {
    const float4 v = *reinterpret_cast<const float4*>(from + p.first);
    four = {v.x, v.y, v.z, v.w};
  } else {
    for (int i = 0; i < kPerThread; i++)
      if (i < p.num) four.x[i] = from[p.first + i];
  }
  return four;
}

FORMULA void store_floats(float* to, const Place& p, const Four& four) {
  if (p.whole) {
    *reinterpret_cast<float4*>(to + p.first) = make_float4(four.x[0], four.x[1], four.x[2], four.x[3]);
  } else {
    for (int i = 0; i < kPerThread; i++)
      if (i < p.num) to[p.first + i] = four.x[i];
  }
}

template <class Type>
FORMULA Four load_as(const void* base, const Place& p) {
  typedef typename Type::Element Element;
  const Element* from = static_cast<const Element*>(base) + p.first;
  Four four = {};
  if (p.whole && sizeof(Element) == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    four = {v.x, v.y, v.z, v.w};
  } else if (p.whole) {
    const ushort4 v = *reinterpret_cast<const ushort4*>(from);
    four = {Type::widen(v.x), Type::widen(v.y), Type::widen(v.z), Type::widen(v.w)};
  } else {
    for (int i = 0; i < kPerThread; i++)
      if (i < p.num) four.x[i] = Type::widen(from[i]);
  }
  return four;
}

template <class Grad>
FORMULA Four load_grad(const Place& p, float scale) {
  Four four = load_as<Grad>(p.entry.grad, p);
  for (int i = 0; i < kPerThread; i++) four.x[i] *= scale;
  return four;
}

template <class Out>
FORMULA void store_out(const Place& p, const Four& four) {
  uint16_t* to = static_cast<uint16_t*>(p.entry.out) + p.first;
  if (!writes<Out>) return;
  if (p.whole) {
    *reinterpret_cast<ushort4*>(to) = make_ushort4(Out::narrow(four.x[0]), Out::narrow(four.x[1]),
                                                   Out::narrow(four.x[2]), Out::narrow(four.x[3]));
  } else {
    for (int i = 0; i < kPerThread; i++)
      if (i < p.num) to[i] = Out::narrow(four.x[i]);
  }
}

template <class Out>
FORMULA Four load_master(const Place& p) {
  if (!splits<Out>) return load_floats(p.entry.master, p);
  const uint16_t* param = static_cast<const uint16_t*>(p.entry.out) + p.first;
  const uint16_t* rest = reinterpret_cast<const uint16_t*>(p.entry.master) + p.first;
  Four four = {};
  if (p.whole) {
    const ushort4 high = *reinterpret_cast<const ushort4*>(param);
    const ushort4 low = *reinterpret_cast<const ushort4*>(rest);
    four = {join_master(high.x, low.x), join_master(high.y, low.y), join_master(high.z, low.z),
            join_master(high.w, low.w)};
  } else {
    for (int i = 0; i < kPerThread; i++)
      if (i < p.num) four.x[i] = join_master(param[i], rest[i]);
  }
  return four;
}

// The master, and the parameter rounded from it.
template <class Out>
FORMULA void store_master(const Place& p, Four theta) {
  if (is_bf16<Out>)
    for (int i = 0; i < kPerThread; i++) theta.x[i] = off_tie(theta.x[i]);
  if (!splits<Out>) {
    store_floats(p.entry.master, p, theta);
  } else {
    uint16_t* to = reinterpret_cast<uint16_t*>(p.entry.master) + p.first;
    uint16_t rest[kPerThread];
    for (int i = 0; i < kPerThread; i++) rest[i] = rest_of(theta.x[i], narrow_bf16(theta.x[i]));
    if (p.whole) {
      *reinterpret_cast<ushort4*>(to) = make_ushort4(rest[0], rest[1], rest[2], rest[3]);
    } else {
      for (int i = 0; i < kPerThread; i++)
        if (i < p.num) to[i] = rest[i];
    }
  }
  store_out<Out>(p, theta);
}

// Sums over the block, the same whatever the timing; valid in thread 0.
FORMULA double block_sum(double x) {
  __shared__ double warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(0xFFFFFFFF, x, offset);
  __syncthreads();  // the last call's reads are over
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int warp = 0; warp < kThreads / 32; warp++) sum += warps[warp];
  return sum;
}
