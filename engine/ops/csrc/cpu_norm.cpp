// The sum of squares of gradients, in double from block sums; it is infinite or NaN exactly if a gradient is.
#include "cpu_traffic.h"

namespace {

// fp32 squares overflow from 1.8e19; their sum would then say that a finite gradient is infinite.
FORMULA double squares_of(Vec x) {
  double sum = 0;
  for (int lane = 0; lane < kLanes; lane++) sum += double(x[lane]) * double(x[lane]);
  return sum;
}

struct SumOfSquares {
  static constexpr bool can_split = false;
  template <class Grad, class Out>
  static void run(const Call& call) {
    using Element = typename Grad::Element;
    Shares shares(call);
#pragma omp parallel num_threads(call.num_threads) if (call.num_threads > 1)
    for_each_share(call, shares, [&](const Entry& e, int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kBlockNumel)
        call.partials[2 * (e.first_block + at / kBlockNumel)] = block<Grad>(
            static_cast<const Element*>(e.grad), at, at + kBlockNumel < end ? at + kBlockNumel : end);
    });
  }

  template <class Grad>
  static double block(const typename Grad::Element* grad, int64_t begin, int64_t end) {
    Vec sums[kUnroll] = {};
    int64_t i = begin;
    for (; i + kUnroll * kLanes <= end; i += kUnroll * kLanes)
      for (int part = 0; part < kUnroll; part++) {
        const Vec g = Grad::load(grad + i + part * kLanes);
        sums[part] += g * g;
      }
    double sum = 0;
    for (int part = 0; part < kUnroll; part++) sum += lane_sum(sums[part]);
    for (; i < end; i += kLanes) sum += squares_of(load_some<Grad>(grad + i, end - i));
    if (sum - sum == 0) return sum;
    sum = 0;  // something is not finite, or a square was too large: once more, in double
    for (i = begin; i < end; i += kLanes) sum += squares_of(load_some<Grad>(grad + i, end - i));
    return sum;
  }

  template <class Grad>
  static Vec load_some(const typename Grad::Element* from, int64_t num) {
    typename Grad::Element copy[kLanes] = {};
    __builtin_memcpy(copy, from, (num < kLanes ? num : kLanes) * sizeof copy[0]);
    return Grad::load(copy);
  }
};

}  // namespace

static void sum_of_squares(const Call& call) { with_dtypes<SumOfSquares>(call); }
