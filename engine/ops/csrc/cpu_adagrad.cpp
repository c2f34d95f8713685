#include "adagrad.h"
#include "cpu_traffic.h"

static void step_adagrad(const Call& call) { with_dtypes<Elementwise<Adagrad>>(call); }
