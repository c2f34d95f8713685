// All memory traffic of the CPU kernels: one pass, gradients widened on the way in, the parameter narrowed on
// the way out.
#pragma once
#include "cpu_team.h"
#include "cpu_vector.h"
#include "stochastic.h"

namespace {

// How far ahead to fetch. Measured best from 256 to 1024 elements, for each stream; past the end it does no
// harm.
constexpr int64_t kAhead = 1024;
constexpr int kUnroll = 4;
// Below this many elements the output stays in a cache, from which it is read next.
constexpr int64_t kStreamOutNumel = 1 << 22;

// Parameters: whether they are written, and whether they are one half of their masters.
struct None {
  static constexpr bool is_written = false, is_split = false, is_bf16 = false;
};
struct Float32 {
  typedef float Element;
  static FORMULA Vec load(const float* from) { return load_as<Vec>(from); }
};
struct BFloat16 {
  typedef uint16_t Element;
  static FORMULA Vec load(const uint16_t* from) { return widen_bf16(load_as<Half>(from)); }
  static constexpr bool is_written = true, is_split = false, is_bf16 = true;
  static FORMULA Half narrow(Vec x) { return narrow_bf16(x); }
};
struct SplitBFloat16 : BFloat16 {
  static constexpr bool is_split = true;
};
struct Float16 {
  typedef uint16_t Element;
  static FORMULA Vec load(const uint16_t* from) { return widen_fp16(load_as<Half>(from)); }
  static constexpr bool is_written = true, is_split = false, is_bf16 = false;
  static FORMULA Half narrow(Vec x) { return narrow_fp16(x); }
};

template <class T>
FORMULA void store(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

template <class Out, bool kPastCaches>
FORMULA void store_out(void* out, int64_t i, Vec theta) {
  if constexpr (Out::is_written) {
    uint16_t* to = static_cast<uint16_t*>(out) + i;
    if (kPastCaches)
      store_past_caches(to, Out::narrow(theta));
    else
      store(to, Out::narrow(theta));
  }
}

template <class Out>
constexpr int kMasterBytes = Out::is_split ? 2 : 4;

template <class Out>
FORMULA char* master_at(const Entry& e, int64_t i) {
  return reinterpret_cast<char*>(e.master) + i * kMasterBytes<Out>;
}

template <class Out>
FORMULA Vec load_master(const Entry& e, int64_t i) {
  if constexpr (Out::is_split)
    return join_master(load_as<Half>(static_cast<const uint16_t*>(e.out) + i),
                       load_as<Half>(master_at<Out>(e, i)));
  else
    return load_as<Vec>(e.master + i);
}

// The master, and the parameter rounded from it.
template <class Out, bool kPastCaches>
FORMULA void store_master(const Entry& e, int64_t i, Vec theta) {
  if constexpr (Out::is_bf16) theta = off_tie(theta);
  if constexpr (Out::is_split)
    store(master_at<Out>(e, i), rest_of(theta, Out::narrow(theta)));
  else
    store(e.master + i, theta);
  store_out<Out, kPastCaches>(e.out, i, theta);
}

FORMULA void fetch(const void* base, int64_t byte) {
  __builtin_prefetch(static_cast<const char*>(base) + byte);
}

template <class Rule, class Grad, class Out>
FORMULA void fetch_ahead(const Entry& e, int64_t i) {
  constexpr int64_t kBytes = kUnroll * kLanes * 4;
  const int64_t at = (i + kAhead) * 4;
  for (int64_t byte = 0; byte < kBytes; byte += 64) {
    if (!Out::is_split) fetch(e.master, at + byte);
  }
  constexpr int64_t kOfState = kStateBytes<Rule>;
  for (int64_t byte = 0; byte < kUnroll * kLanes * kOfState; byte += 64) {
    if (Rule::num_states > 0) fetch(e.state1, (i + kAhead) * kOfState + byte);
    if (Rule::num_states > 1) fetch(e.state2, (i + kAhead) * kOfState + byte);
  }
  for (int64_t byte = 0; Out::is_split && byte < kBytes / 2; byte += 64) {
    fetch(e.master, at / 2 + byte);
    fetch(e.out, at / 2 + byte);
  }
  constexpr int64_t kGradBytes = kUnroll * kLanes * sizeof(typename Grad::Element);
  for (int64_t byte = 0; byte < kGradBytes; byte += 64)
    fetch(e.grad, (i + kAhead) * int64_t(sizeof(typename Grad::Element)) + byte);
}

template <class Rule>
FORMULA char* state_at(float* state, int64_t i) {
  return reinterpret_cast<char*>(state) + i * kStateBytes<Rule>;
}

template <class Rule>
FORMULA Vec load_state(float* state, int64_t i) {
  if constexpr (has_low_states<Rule>)
    return widen_bf16(load_as<Half>(state_at<Rule>(state, i)));
  else
    return load_as<Vec>(state + i);
}

template <class Rule>
FORMULA void store_states(const Entry& e, int64_t i, Vec state1, Vec state2,
                          const typename Rule::Scalars& s) {
  if constexpr (has_low_states<Rule>) {
    Bits lanes;
    for (int lane = 0; lane < kLanes; lane++) lanes[lane] = uint32_t(lane) * kGolden;
    const Bits random = mixed(lanes + ((e.start + uint32_t(i)) * kGolden + noise_key(s.step, e.stream)));
    store(state_at<Rule>(e.state1, i), narrow_bf16_at_random(state1, random & 0xFFFF));
    store(state_at<Rule>(e.state2, i), narrow_bf16_at_random(state2, random >> 16));
  } else {
    if (Rule::num_states > 0) store(e.state1 + i, state1);
    if (Rule::num_states > 1) store(e.state2 + i, state2);
  }
}

// Elements [i, i + kLanes) of the entry.
template <class Rule, class Grad, class Out, bool kPastCaches>
FORMULA void step_vector(const Entry& e, int64_t i, float scale, const typename Rule::Scalars& s) {
  const Vec g = Grad::load(static_cast<const typename Grad::Element*>(e.grad) + i) * scale;
  Vec theta = load_master<Out>(e, i), state1 = {}, state2 = {};
  if (Rule::num_states > 0) state1 = load_state<Rule>(e.state1, i);
  if (Rule::num_states > 1) state2 = load_state<Rule>(e.state2, i);
  Rule::step(theta, state1, state2, g, s);
  store_master<Out, kPastCaches>(e, i, theta);
  store_states<Rule>(e, i, state1, state2, s);
}

// The last elements, fewer than a vector, through copies of a whole one: every element meets the same
// arithmetic wherever a shard begins and ends.
template <class Rule, class Grad, class Out>
__attribute__((noinline)) void step_tail(const Entry& e, int64_t i, int64_t num, float scale,
                                         const typename Rule::Scalars& s) {
  float master[kLanes] = {}, state1[kLanes] = {}, state2[kLanes] = {};
  typename Grad::Element grad[kLanes] = {};
  uint16_t out[kLanes] = {};
  __builtin_memcpy(master, master_at<Out>(e, i), num * kMasterBytes<Out>);
  if (Out::is_split) __builtin_memcpy(out, static_cast<const uint16_t*>(e.out) + i, num * 2);
  const int64_t state_bytes = num * kStateBytes<Rule>;
  if (Rule::num_states > 0) __builtin_memcpy(state1, state_at<Rule>(e.state1, i), state_bytes);
  if (Rule::num_states > 1) __builtin_memcpy(state2, state_at<Rule>(e.state2, i), state_bytes);
  __builtin_memcpy(grad, static_cast<const typename Grad::Element*>(e.grad) + i, num * sizeof grad[0]);
  const Entry copy = {master, state1, state2, grad, out, kLanes, 0, e.start + uint32_t(i), e.stream};
  step_vector<Rule, Grad, Out, false>(copy, 0, scale, s);
  __builtin_memcpy(master_at<Out>(e, i), master, num * kMasterBytes<Out>);
  if (Rule::num_states > 0) __builtin_memcpy(state_at<Rule>(e.state1, i), state1, state_bytes);
  if (Rule::num_states > 1) __builtin_memcpy(state_at<Rule>(e.state2, i), state2, state_bytes);
  if (e.out) __builtin_memcpy(static_cast<uint16_t*>(e.out) + i, out, num * 2);
}

template <class Rule, class Grad, class Out, bool kPastCaches>
inline void step_run(const Entry& entry, int64_t i, int64_t end, float scale,
                     const typename Rule::Scalars& scalars) {
  const Entry e = entry;  // in registers: the stores could alias them otherwise
  const typename Rule::Scalars s = scalars;
  for (; i + kUnroll * kLanes <= end; i += kUnroll * kLanes) {
    fetch_ahead<Rule, Grad, Out>(e, i);
    for (int part = 0; part < kUnroll; part++)
      step_vector<Rule, Grad, Out, kPastCaches>(e, i + part * kLanes, scale, s);
  }
  for (; i + kLanes <= end; i += kLanes) step_vector<Rule, Grad, Out, kPastCaches>(e, i, scale, s);
  if (i < end) step_tail<Rule, Grad, Out>(e, i, end - i, scale, s);
}

template <class Rule, class Grad, class Out>
inline void step_entries(const Call& call) {
  const typename Rule::Scalars s = *static_cast<const typename Rule::Scalars*>(call.scalars);
  const bool large = call.num_blocks * kBlockNumel >= kStreamOutNumel;
  Shares shares(call);
#pragma omp parallel num_threads(call.num_threads) if (call.num_threads > 1)
  {
    FlushDenormals flush;
    for_each_share(call, shares, [&](const Entry& e, int64_t begin, int64_t end) {
      if (large && !Out::is_split && reinterpret_cast<uintptr_t>(e.out) % sizeof(Half) == 0)
        step_run<Rule, Grad, Out, true>(e, begin, end, call.grad_scale, s);
      else
        step_run<Rule, Grad, Out, false>(e, begin, end, call.grad_scale, s);
    });
    __atomic_thread_fence(
        __ATOMIC_SEQ_CST);  // stores past the caches are seen by whoever waits for this team
  }
}

// Turns run-time dtypes into template arguments: body.template run<Grad, Out>(call).
template <class Body, class Grad>
inline void with_out(const Call& call) {
  switch (call.out_dtype) {
    case kBFloat16:
      return Body::template run<Grad, BFloat16>(call);
    case kFloat16:
      return Body::template run<Grad, Float16>(call);
    case kSplitBFloat16:
      if constexpr (Body::can_split) return Body::template run<Grad, SplitBFloat16>(call);
      __builtin_unreachable();
    default:
      return Body::template run<Grad, None>(call);
  }
}
template <class Body>
inline void with_dtypes(const Call& call) {
  switch (call.grad_dtype) {
    case kBFloat16:
      return with_out<Body, BFloat16>(call);
    case kFloat16:
      return with_out<Body, Float16>(call);
    default:
      return with_out<Body, Float32>(call);
  }
}

template <class Rule>
struct Elementwise {
  static constexpr bool can_split = true;
  template <class Grad, class Out>
  static void run(const Call& call) {
    step_entries<Rule, Grad, Out>(call);
  }
};

}  // namespace
