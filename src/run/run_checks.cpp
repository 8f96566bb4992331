#include "run/run_checks.h"

#include "core/stopwatch.h"
#include "run/fill_record.h"

namespace longnet {

void RunChecks::prepare_run() {
  if (runs_ > 0) {
    const Stopwatch watch(compare_s_);
    check_run(runs_, /*is_last=*/false);
  }
  ++runs_;
  const Stopwatch watch(poison_s_);
  session_.poison();
}

void RunChecks::record(PointRecord& record) {
  {
    const Stopwatch watch(compare_s_);
    check_run(runs_, /*is_last=*/true);
    record_findings(record);
  }
  set_check_cost(record, runs_, comm_.max_of(poison_s_), comm_.max_of(compare_s_));
}

std::unique_ptr<RunChecks> make_run_checks(PointSession& session, const PointPlan& plan,
                                           const RunnerOptions& options, Communicator& comm) {
  return has_layers(plan.point.params.scope) ? make_model_checks(session, plan, options, comm)
                                             : make_attention_checks(session, options, comm);
}

}  // namespace longnet
