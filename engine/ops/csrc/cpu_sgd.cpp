#include "cpu_traffic.h"
#include "sgd.h"

static void step_sgd(const Call& call) { with_dtypes<Elementwise<Sgd>>(call); }
static void step_sgd_momentum(const Call& call) { with_dtypes<Elementwise<SgdMomentum>>(call); }
