#include "cpu_traffic.h"
#include "lamb.h"

namespace {

struct Squares {
  double theta = 0, r = 0;
};

// Zero from lane `num` on, where r would be 0 / eps, or 0 / 0.
FORMULA Vec keep_first(Vec x, int64_t num) {
  for (int lane = 0; lane < kLanes; lane++) x[lane] = lane < num ? x[lane] : 0.0f;
  return x;
}

// m and v of the elements [i, i + kLanes); adds up |theta|^2 and |r|^2 of the first `num`.
template <class Grad>
FORMULA void lamb_moments(const Entry& e, int64_t i, int64_t num, float scale, const Lamb::Scalars& s,
                          Vec& theta_squares, Vec& r_squares) {
  const Vec g = Grad::load(static_cast<const typename Grad::Element*>(e.grad) + i) * scale;
  const Vec theta = load_as<Vec>(e.master + i);
  Vec m = load_as<Vec>(e.state1 + i), v = load_as<Vec>(e.state2 + i);
  Lamb::moments(m, v, g, s);
  store(e.state1 + i, m);
  store(e.state2 + i, v);
  Vec r = Lamb::direction(theta, m, v, s);
  if (num < kLanes) r = keep_first(r, num);
  theta_squares += theta * theta;
  r_squares += r * r;
}

template <class Out>
FORMULA void lamb_update(const Entry& e, int64_t i, float step_size, const Lamb::Scalars& s) {
  Vec theta = load_as<Vec>(e.master + i);
  const Vec m = load_as<Vec>(e.state1 + i), v = load_as<Vec>(e.state2 + i);
  theta = theta - step_size * Lamb::direction(theta, m, v, s);
  store_master<Out, false>(e, i, theta);
}

// Calls body(entry, i, num) for every vector of [i, end), the last one on a copy that is written back.
template <class Grad, class Body>
inline void for_each_vector(const Entry& entry, int64_t i, int64_t end, Body body) {
  const Entry e = entry;
  for (; i + kLanes <= end; i += kLanes) body(e, i, kLanes);
  if (i == end) return;
  const int64_t num = end - i;
  float master[kLanes] = {}, m[kLanes] = {}, v[kLanes] = {};
  typename Grad::Element grad[kLanes] = {};
  uint16_t out[kLanes] = {};
  __builtin_memcpy(master, e.master + i, num * 4);
  __builtin_memcpy(m, e.state1 + i, num * 4);
  __builtin_memcpy(v, e.state2 + i, num * 4);
  __builtin_memcpy(grad, static_cast<const typename Grad::Element*>(e.grad) + i, num * sizeof grad[0]);
  body(Entry{master, m, v, grad, out, kLanes, 0, 0, 0}, 0, num);
  __builtin_memcpy(e.master + i, master, num * 4);
  __builtin_memcpy(e.state1 + i, m, num * 4);
  __builtin_memcpy(e.state2 + i, v, num * 4);
  if (e.out) __builtin_memcpy(static_cast<uint16_t*>(e.out) + i, out, num * 2);
}

// Sums are taken block by block and added in order, so that they do not depend on the number of threads.
template <class Grad>
inline void lamb_first_pass(const Call& call, Share share, const Lamb::Scalars& s) {
  for_each_run(call, share, [&](const Entry& e, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlockNumel) {
      Vec theta_squares = {}, r_squares = {};
      for_each_vector<Grad>(e, at, at + kBlockNumel < end ? at + kBlockNumel : end,
                            [&](const Entry& part, int64_t i, int64_t num) {
                              lamb_moments<Grad>(part, i, num, call.grad_scale, s, theta_squares, r_squares);
                            });
      double* partial = call.partials + 2 * (e.first_block + at / kBlockNumel);
      partial[0] = lane_sum(theta_squares);
      partial[1] = lane_sum(r_squares);
    }
  });
}

inline float lamb_trust(const Call& call, const Entry& e, const Lamb::Scalars& s) {
  Squares sum;
  const int64_t end = e.first_block + (e.numel + kBlockNumel - 1) / kBlockNumel;
  for (int64_t block = e.first_block; block < end; block++) {
    sum.theta += call.partials[2 * block];
    sum.r += call.partials[2 * block + 1];
  }
  return Lamb::trust(sum.theta, sum.r, s);
}

struct TwoPasses {
  static constexpr bool can_split = false;
  template <class Grad, class Out>
  static void run(const Call& call) {
    const Lamb::Scalars s = *static_cast<const Lamb::Scalars*>(call.scalars);
#pragma omp parallel num_threads(call.num_threads) if (call.num_threads > 1)
    {
      FlushDenormals flush;
      const Share share = share_of_this_thread(call.num_blocks);
      lamb_first_pass<Grad>(call, share, s);
#pragma omp barrier
      for_each_run(call, share, [&](const Entry& e, int64_t begin, int64_t end) {
        const float step_size = lamb_trust(call, e, s);
        for_each_vector<Grad>(e, begin, end, [&](const Entry& part, int64_t i, int64_t num) {
          lamb_update<Out>(part, i, step_size, s);
        });
      });
    }
  }
};

}  // namespace

static void step_lamb(const Call& call) { with_dtypes<TwoPasses>(call); }
