// Where kernels run: on the cores of the host or on GPUs. Planning, measuring and walking ask a
// backend for all in which the two differ.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "execute/virtual_walk.h"
#include "run/measure_point.h"
#include "run/point_session.h"

namespace longnet {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual bool on_gpu() const = 0;

  // For plans, on any machine and in any build. Empty, or why the kernel cannot do this point.
  virtual std::string why_unsupported(const PointParams& params) const = 0;
  // Empty when the kernel can run on this machine, else what is missing.
  virtual std::string why_absent(const PointParams&) const { return {}; }
  // Scratch memory of one rank as far as it is known before tasks are.
  virtual int64_t workspace_bytes(const PointParams& params, int threads) const = 0;
  // Seconds that the generator takes for a value of Q, K or V.
  virtual double fill_s_per_value() const = 0;

  // Collective. Throws UsageError on all ranks where these do not fit the transport.
  virtual std::unique_ptr<PointSession> open(const PointPlan& plan, const RunnerOptions& options,
                                             Communicator& comm) const = 0;

  // Virtual ranks: one device, that of the calling thread, walks the programs of all.
  virtual std::unique_ptr<UnitWalk> make_walk(const PointParams& params,
                                              UnitWalk::MakeSchedule make_schedule,
                                              MemoryLedger& ledger) const = 0;
  // FLOP/s (4 d per pair) of the point's kernel on dense segments of 2048 rows, to which a walk is
  // compared. Takes half a second at most on a quiet core.
  virtual double attend_rate(const PointParams& params) const = 0;
  // FLOP/s of the device that walks, which it describes in the record.
  virtual double record_walking_device(PointRecord& record, const RunnerOptions& options) const = 0;
  // Tolerance of the check in a walk. `given`: check.tolerance, 0 for the default.
  virtual Tolerance walk_tolerance(double given) const = 0;
};

// The backend of a kernel's name. Nothing else decides by names where a kernel runs.
const Backend& backend_of(std::string_view kernel);
// The GPU backend, also in builds and on machines without GPUs.
const Backend& gpu_backend();

}  // namespace longnet
