// Parts of a record that do not depend on how its point ran.
#pragma once
#include "io/record.h"
#include "kernels/row_worker.h"
#include "lnbench/prepare.h"

namespace longnet {

// FLOPs, tokens, balance and coverage; after timing also rates. `peak_flops`: of one thread of
// every rank that runs at the same time.
void record_work(PointRecord& record, const PointPlan& plan, double peak_flops);
void record_depth(PointRecord& record, const PointParams& params);
ContentRecord to_content(const OutputSummary& output);
// The largest resident size that this process has had, in bytes (Linux; else 0).
double peak_resident_bytes();

}  // namespace longnet
