// The numbers of CUDA kernels: formulas run on plain floats.
#pragma once
#include "entry.h"

FORMULA float square_root(float x) { return sqrtf(x); }
FORMULA double square_root(double x) { return sqrt(x); }
FORMULA float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }  // 0 and NaN stay what they are

FORMULA float widen_bf16(uint16_t h) { return __uint_as_float(uint32_t(h) << 16); }
FORMULA float widen_fp16(uint16_t h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}
FORMULA uint16_t narrow_bf16(float x) {
  uint16_t h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
// Up with the probability of what is cut off; `random` has 16 bits. NaN stays NaN.
FORMULA uint16_t narrow_bf16_at_random(float x, uint32_t random) {
  const uint32_t bits = __float_as_uint(x);
  return uint16_t((x == x ? bits + random : bits | 0x400000) >> 16);
}
FORMULA uint16_t narrow_fp16(float x) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}

// See remainder.py: a master from its bf16 parameter and the rest, the rest, and masters that have one.
FORMULA float join_master(uint16_t param, uint16_t rest) {
  return __uint_as_float((uint32_t(param) << 16) + uint32_t(int32_t(int16_t(rest))));
}
FORMULA uint16_t rest_of(float master, uint16_t param) {
  return uint16_t(__float_as_uint(master) - (uint32_t(param) << 16));
}
FORMULA float off_tie(float master) {
  const uint32_t bits = __float_as_uint(master);
  return __uint_as_float(bits - uint32_t((bits & 0x1FFFF) == 0x8000));
}
