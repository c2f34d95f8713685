#include "adamw.h"
#include "cpu_traffic.h"

static void step_adamw(const Call& call) { with_dtypes<Elementwise<AdamW>>(call); }
static void step_adamw_bf16(const Call& call) { with_dtypes<Elementwise<InBFloat16<AdamW>>>(call); }
