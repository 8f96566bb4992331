#include "run/host_session.h"

#include "execute/program_executor.h"
#include "run/fill_record.h"
#include "run/machine.h"

namespace longnet {

HostSession::HostSession(const PointParams& p, double peak_flops_per_thread, Communicator& comm)
    : comm_(comm),
      places_(gather_places(comm)),
      clock_(comm, places_),
      kernel_(make_kernel(p.kernel)),
      threads_(p.threads),
      cores_(usable_cores(places_, p.threads)),
      peak_flops_per_thread_(peak_flops_per_thread),
      resident_before_(peak_resident_bytes()) {
  worker_ = make_cpu_row_worker();
}

void HostSession::record_machine(PointRecord& record) const {
  record.metrics["usable_cores"] = cores_;
}

void HostSession::bind(const Schedule& schedule) {
  executor_ = std::make_unique<ProgramExecutor>(schedule, *kernel_, threads_, comm_, ledger_);
}

SampleHooks HostSession::sample_hooks() {
  return clock_.hooks([this] { executor_->run(); });
}

double HostSession::time(const std::function<double()>& run) {
  return clock_.time([&] { run(); });
}

void HostSession::record_conditions(PointRecord& record) {
  if (comm_.transport() == "mpi")
    record.metrics["resident_growth_bytes"] =
        comm_.max_of(peak_resident_bytes() - resident_before_);
}

}  // namespace longnet
