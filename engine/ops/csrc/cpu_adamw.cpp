#include "adamw.h"
#include "cpu_traffic.h"

static void step_adamw(const Call& call) { with_dtypes<Elementwise<AdamW>>(call); }
