// Parts of a record that do not depend on how its point ran.
#pragma once
#include "io/record.h"
#include "kernels/row_worker.h"
#include "lnbench/prepare.h"

namespace longnet {

// FLOPs, tokens, balance and coverage; after timing also rates. `peak_flops`: of all cores that are
// at work at the same time (usable_cores); 0 when it is not known.
void record_work(PointRecord& record, const PointPlan& plan, double peak_flops);
void record_depth(PointRecord& record, const PointParams& params);
ContentRecord to_content(const OutputSummary& output);
// The largest resident size that this process has had, in bytes (Linux; else 0).
double peak_resident_bytes();

}  // namespace longnet
