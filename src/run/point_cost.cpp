#include "run/point_cost.h"

#include <algorithm>

#include "run/ablations.h"
#include "run/backend.h"
#include "run/point_schedule.h"

namespace longnet {

double point_cost(const PointPlan& plan, const MeasureConfig& measure) {
  if (plan.point.status != PointStatus::kOk) return 0;
  const PointParams& p = plan.point.params;
  const double samples = double(measure.warmup + measure.min_samples);
  if (is_virtual(p)) return 1.1 * plan.estimated_s * samples;  // its other work is below a tenth
  double keys = 0;
  for (const DilatedBranch& b : p.pattern.branches)
    keys += double(std::min(b.segment_length, p.problem.seq_len)) / double(b.dilation_rate);
  const double fill =
      backend_of(p.kernel).fill_s_per_value() *
      double(p.problem.seq_len * p.problem.batch * p.problem.num_heads * p.problem.head_dim) /
      p.ranks;
  return plan.estimated_s * (samples + ablation_runs(plan.estimated_s, p.ranks)) + fill +
         5e-6 * keys * double(p.problem.num_heads);
}

}  // namespace longnet
