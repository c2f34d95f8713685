// The sum of squares of gradients and whether all are finite, in one pass over them; sums are in a fixed
// order.
#include "cuda_launch.h"

constexpr int kNormRounds = 16;  // blocks of 1024 that one thread block sums

// Blocks of a norm's table have kNormRounds * kBlockNumel elements.
template <class Grad>
FORMULA void sum_squares(const Launch& launch) {
  typedef typename Grad::Element Element;
  Place place;
  int64_t block = blockIdx.x;
  if (launch.table) {
    place.entry = launch.table[launch.tensor_of_block[block]];
    block -= place.entry.first_block;
  } else {
    place.entry = launch.flat;
  }
  const bool vectors = aligned(place.entry, 4 * sizeof(Element), 16);
  double sum = 0;
#pragma unroll 4
  for (int round = 0; round < kNormRounds; round++) {
    place.first = (block * kNormRounds + round) * kBlockNumel + threadIdx.x * kPerThread;
    const int64_t left = place.entry.numel - place.first;
    place.num = left >= kPerThread ? kPerThread : left > 0 ? int(left) : 0;
    place.whole = vectors && place.num == kPerThread;
    const Four g = load_grad<Grad>(place, 1.0f);
    for (int i = 0; i < kPerThread; i++) sum += double(g.x[i]) * double(g.x[i]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) launch.partials[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(kThreads) norm_1(const Launch launch) {
  sum_squares<Float32>(launch);
}
extern "C" __global__ void __launch_bounds__(kThreads) norm_2(const Launch launch) {
  sum_squares<BFloat16>(launch);
}
extern "C" __global__ void __launch_bounds__(kThreads) norm_3(const Launch launch) {
  sum_squares<Float16>(launch);
}

// One block: adds up the partial sums.
extern "C" __global__ void __launch_bounds__(kThreads)
    norm_total(const double* partials, int64_t num, double* total) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < num; i += kThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum;
}
