#include "cpu_traffic.h"
#include "lion.h"

static void step_lion(const Call& call) { with_dtypes<Elementwise<Lion>>(call); }
