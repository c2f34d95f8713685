// The elementwise optimizers' kernel, and its names for each mix of dtypes.
#pragma once
#include "cuda_launch.h"
#include "stochastic.h"

template <class Rule>
FORMULA Four load_state(const float* state, const Place& p) {
  return has_low_states<Rule> ? load_as<BFloat16>(state, p) : load_floats(state, p);
}

FORMULA void store_low(float* state, const Place& p, const uint16_t (&low)[kPerThread]) {
  uint16_t* to = reinterpret_cast<uint16_t*>(state) + p.first;
  if (p.whole) {
    *reinterpret_cast<ushort4*>(to) = make_ushort4(low[0], low[1], low[2], low[3]);
  } else {
    for (int i = 0; i < kPerThread; i++)
      if (i < p.num) to[i] = low[i];
  }
}

template <class Rule>
FORMULA void store_states(const Place& p, const Four& state1, const Four& state2,
                          const typename Rule::Scalars& s) {
  const Entry& e = p.entry;
  if constexpr (has_low_states<Rule>) {
    const uint32_t first = e.start + uint32_t(p.first), key = noise_key(s.step, e.stream);
    uint16_t low1[kPerThread], low2[kPerThread];
    for (int i = 0; i < kPerThread; i++) {
      const uint32_t random = mixed((first + i) * kGolden + key);
      low1[i] = narrow_bf16_at_random(state1.x[i], random & 0xFFFF);
      low2[i] = narrow_bf16_at_random(state2.x[i], random >> 16);
    }
    store_low(e.state1, p, low1);
    store_low(e.state2, p, low2);
  } else {
    if (Rule::num_states > 0) store_floats(e.state1, p, state1);
    if (Rule::num_states > 1) store_floats(e.state2, p, state2);
  }
}

// One branch around all loads and one around all stores: several loads are then in flight at once. Between
// them stands one formula, which the compiler must not copy into both branches: the fused multiply-adds of
// two copies could differ, and how a shard is cut would then change bits.
template <class Rule, class Grad, class Out>
FORMULA void step_elements(const Launch& launch, const typename Rule::Scalars& host,
                           const typename Rule::Scalars* device) {
  if (is_skipped(launch)) return;
  Place place = place_of<Grad, kStateBytes<Rule>>(launch);
  if (place.num == 0) return;
  const Entry& e = place.entry;
  Four g, theta, state1 = {}, state2 = {};
  const auto load = [&](bool whole) {
    place.whole = whole;
    g = load_grad<Grad>(place, 1.0f);
    theta = load_master<Out>(place);
    if (Rule::num_states > 0) state1 = load_state<Rule>(e.state1, place);
    if (Rule::num_states > 1) state2 = load_state<Rule>(e.state2, place);
  };
  const typename Rule::Scalars s = device ? *device : host;
  const auto store = [&](bool whole) {
    place.whole = whole;
    store_master<Out>(place, theta);
    store_states<Rule>(place, state1, state2, s);
  };
  const bool whole = place.whole;
  if (whole)
    load(true);
  else
    load(false);
  int again = whole;
  asm volatile("" : "+r"(again));  // the compiler does not know that it is the same condition
  const float scale = scale_of(launch);
  for (int i = 0; i < kPerThread; i++) Rule::step(theta.x[i], state1.x[i], state2.x[i], g.x[i] * scale, s);
  if (again)
    store(true);
  else
    store(false);
}

#define STEP_KERNEL(name, Rule, Grad, Out)                                               \
  extern "C" __global__ void __launch_bounds__(kThreads)                                 \
      name(const Launch launch, const Rule::Scalars host, const Rule::Scalars* device) { \
    step_elements<Rule, Grad, Out>(launch, host, device);                                \
  }

// name_GRAD_OUT with the codes of DType.
#define STEP_KERNELS(name, Rule)                         \
  STEP_KERNEL(name##_1_0, Rule, Float32, None)           \
  STEP_KERNEL(name##_1_2, Rule, Float32, BFloat16)       \
  STEP_KERNEL(name##_1_3, Rule, Float32, Float16)        \
  STEP_KERNEL(name##_1_4, Rule, Float32, SplitBFloat16)  \
  STEP_KERNEL(name##_2_0, Rule, BFloat16, None)          \
  STEP_KERNEL(name##_2_2, Rule, BFloat16, BFloat16)      \
  STEP_KERNEL(name##_2_3, Rule, BFloat16, Float16)       \
  STEP_KERNEL(name##_2_4, Rule, BFloat16, SplitBFloat16) \
  STEP_KERNEL(name##_3_0, Rule, Float16, None)           \
  STEP_KERNEL(name##_3_2, Rule, Float16, BFloat16)       \
  STEP_KERNEL(name##_3_3, Rule, Float16, Float16)        \
  STEP_KERNEL(name##_3_4, Rule, Float16, SplitBFloat16)

// Scalars for steps that a CUDA graph replays: computed on the GPU from a step counter and a learning rate
// that live there. `counter` counts the applied steps, and this one too where `advance` is not 0; null: the
// rule counts none. `lr` null: the host's.
#define PREPARE_KERNEL(name, Rule)                                                                    \
  extern "C" __global__ void name##_prepare(const Rule::Hyper hyper, const float* lr, float* counter, \
                                            int64_t advance, const float* found_inf,                  \
                                            Rule::Scalars* scalars) {                                 \
    if (found_inf && *found_inf != 0) return;                                                         \
    if (counter && advance) *counter += 1;                                                            \
    *scalars = Rule::scalars(hyper, lr ? double(*lr) : hyper.lr, counter ? double(*counter) : 0.0);   \
  }
