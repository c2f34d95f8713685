// What formulas are written in: square_root() and sign() of whatever stands for a number where they are
// compiled.
#pragma once
#include "entry.h"
#if defined(__CUDACC__)
#include "cuda_arithmetic.h"
#else
#include "cpu_vector.h"
#endif
