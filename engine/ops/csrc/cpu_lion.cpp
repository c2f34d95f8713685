#include "lion.h"

#include "cpu_traffic.h"

static void step_lion(const Call& call) { with_dtypes<Elementwise<Lion>>(call); }
