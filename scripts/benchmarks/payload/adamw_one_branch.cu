// AdamW's kernels with one branch around all loads and one around all stores: what `scripts/bench offload`
// measures beside those in use, which branch at each. ONE_BRANCH 1 decides for each thread, 2 for each block.
// Between the branches is one formula, which the compiler must not copy into both: the fused multiply-adds of
// two copies could differ, and how a shard is cut would then change bits.
#include "adamw.h"
#include "cuda_step.h"

template <class Rule, class Grad, class Out>
FORMULA void step_one_branch(const Launch& launch, const typename Rule::Scalars& host,
                             const typename Rule::Scalars* device) {
  if (is_skipped(launch)) return;
  Place place = place_of<Grad>(launch);
  if (place.num == 0) return;
  const Entry& e = place.entry;
  Four g, theta, state1 = {}, state2 = {};
  const auto load = [&](bool whole) {
    place.whole = whole;
    g = load_grad<Grad>(place, 1.0f);
    theta = load_floats(e.master, place);
    if (Rule::num_states > 0) state1 = load_floats(e.state1, place);
    if (Rule::num_states > 1) state2 = load_floats(e.state2, place);
  };
  const auto store = [&](bool whole) {
    place.whole = whole;
    store_floats(e.master, place, theta);
    if (Rule::num_states > 0) store_floats(e.state1, place, state1);
    if (Rule::num_states > 1) store_floats(e.state2, place, state2);
    store_out<Out>(place, theta);
  };
#if ONE_BRANCH == 2
  const int64_t block_end = place.first - int64_t(threadIdx.x * kPerThread) + kBlockNumel;
  const bool whole = block_end <= e.numel && aligned(e, 4 * sizeof(typename Grad::Element));
#else
  const bool whole = place.whole;
#endif
  if (whole)
    load(true);
  else
    load(false);
  int again = whole;
  asm volatile("" : "+r"(again));  // the compiler does not know that it is the same condition
  const float scale = scale_of(launch);
  const typename Rule::Scalars s = device ? *device : host;
  for (int i = 0; i < kPerThread; i++) Rule::step(theta.x[i], state1.x[i], state2.x[i], g.x[i] * scale, s);
  if (again)
    store(true);
  else
    store(false);
}

#define step_elements step_one_branch
#if defined(MIN_BLOCKS)  // so many on an SM, in as few registers as that takes
#undef STEP_KERNEL
#define STEP_KERNEL(name, Rule, Grad, Out)                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS)                     \
      name(const Launch launch, const Rule::Scalars host, const Rule::Scalars* device) { \
    step_elements<Rule, Grad, Out>(launch, host, device);                                \
  }
#endif
STEP_KERNELS(adamw, AdamW)
PREPARE_KERNEL(adamw, AdamW)
