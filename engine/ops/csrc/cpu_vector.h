// One SIMD register of floats, `Vec`, as GCC's and clang's vector extension: formulas use it as if it were a
// float. The width follows the flags this is compiled with. All of it has internal linkage, because the same
// names are compiled several times into one library, each time for another instruction set.
#pragma once
#include <stdint.h>
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif
#include "entry.h"

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Half __attribute__((vector_size(kLanes * 2)));  // bf16 or fp16
typedef int16_t Rest __attribute__((vector_size(kLanes * 2)));

template <class T, class P>
FORMULA T load_as(const P* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);  // one unaligned move
  return value;
}

FORMULA Vec square_root(Vec x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  for (int lane = 0; lane < kLanes; lane++) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
#endif
}

FORMULA double square_root(double x) { return __builtin_sqrt(x); }

FORMULA Vec sign(Vec x) {  // 0 and NaN stay what they are
  const Vec zero = {}, one = zero + 1.0f;
  return x > zero ? one : x < zero ? -one : x;
}

FORMULA Vec widen_bf16(Half h) { return (Vec)(__builtin_convertvector(h, Bits) << 16); }

// To nearest, ties to even; NaN stays NaN.
#if defined(__AVX512BF16__)
FORMULA Half narrow_bf16(Vec x) { return (Half)_mm512_cvtneps_pbh(x); }
#else
FORMULA Half narrow_bf16(Vec x) {
  const Bits bits = (Bits)x;
  const Bits rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector(x == x ? rounded : (bits >> 16) | 0x40, Half);
}
#endif

// Up with the probability of what is cut off; `random` has 16 bits. NaN stays NaN.
FORMULA Half narrow_bf16_at_random(Vec x, Bits random) {
  const Bits bits = (Bits)x;
  return __builtin_convertvector(x == x ? (bits + random) >> 16 : (bits >> 16) | 0x40, Half);
}

// See remainder.py: a master from its bf16 parameter and the rest, the rest, and masters that have one.
FORMULA Vec join_master(Half param, Half rest) {
  return (Vec)((Bits)widen_bf16(param) + (Bits) __builtin_convertvector((Rest)rest, Ints));
}
FORMULA Half rest_of(Vec master, Half param) {
  return __builtin_convertvector((Bits)master - (Bits)widen_bf16(param), Half);
}
FORMULA Vec off_tie(Vec master) {
  const Bits bits = (Bits)master;
  return (Vec)(bits + (Bits)((bits & 0x1FFFF) == 0x8000));  // true is -1
}

#if defined(__AVX512F__)
FORMULA Vec widen_fp16(Half h) { return _mm512_cvtph_ps((__m256i)h); }
FORMULA Half narrow_fp16(Vec x) { return (Half)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__F16C__)
FORMULA Vec widen_fp16(Half h) { return _mm256_cvtph_ps((__m128i)h); }
FORMULA Half narrow_fp16(Vec x) { return (Half)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
#else
FORMULA float widen_fp16(uint16_t h) {
  const uint32_t sign_bit = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  float value;
  if (exponent == 0) {
    value = float(fraction) * 5.9604645e-8f;  // 2^-24
    return sign_bit ? -value : value;
  }
  const uint32_t bits = sign_bit | (exponent == 31 ? 0xFFu : exponent + 112) << 23 | fraction << 13;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

FORMULA uint16_t narrow_fp16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t sign_bit = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign_bit | 0x7E00;   // NaN
  if (magnitude >= 0x477FF000) return sign_bit | 0x7C00;  // 65520 and more round to infinity
  if (magnitude < 0x38800000) {                           // below 2^-14: a multiple of 2^-24
    float scaled;
    __builtin_memcpy(&scaled, &magnitude, 4);
    return sign_bit | uint32_t(__builtin_rintf(scaled * 16777216.0f));
  }
  return sign_bit | ((magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13);
}

FORMULA Vec widen_fp16(Half h) {
  Vec x;
  for (int lane = 0; lane < kLanes; lane++) x[lane] = widen_fp16((uint16_t)h[lane]);
  return x;
}

FORMULA Half narrow_fp16(Vec x) {
  Half h;
  for (int lane = 0; lane < kLanes; lane++) h[lane] = narrow_fp16((float)x[lane]);
  return h;
}
#endif

// Past the caches: for what is written and not read. `to` is aligned to the size of the value.
FORMULA void store_past_caches(uint16_t* to, Half value) {
#if defined(__AVX512F__)
  _mm256_stream_si256((__m256i*)to, (__m256i)value);
#elif defined(__AVX2__)
  _mm_stream_si128((__m128i*)to, (__m128i)value);
#else
  __builtin_memcpy(to, &value, sizeof value);
#endif
}

FORMULA double lane_sum(Vec x) {
  double sum = 0;
  for (int lane = 0; lane < kLanes; lane++) sum += double(x[lane]);
  return sum;
}

}  // namespace
