// Measures one point whose kernel runs on a GPU. The record is that of run_point().
#pragma once
#include <memory>

#include "comm/comm_operations.h"
#include "execute/unit_walk.h"
#include "run/point_runner.h"

namespace longnet {

// Collective over the ranks of `comm`, each of which works on a GPU of its machine, in turn.
// Seconds are the device's own, between the first and the last op. A point is ok only when its
// sampled queries agree with the reference within what 16-bit storage allows, its counted bytes and
// messages equal the predicted ones, and its slots take the predicted memory.
PointRecord run_device_point(const PointPlan& plan, const RunnerOptions& options,
                             Communicator& comm);

// What transport "auto" is for all ranks of a run, so that its points differ in nothing else; other
// names stay, and "auto" does where some rank has no GPU. Collective.
std::string transport_of_run(const std::string& name, Communicator& comm);

// Of `lnbench comm`, on each rank's device. `transport`: a name, or "gpu" for what "auto" is.
// Throws on every rank when it does not fit, or some device lacks the memory. Collective.
std::unique_ptr<CommOperations> operations_on_device(const std::string& transport,
                                                     Communicator& comm, int64_t max_bytes);

// Which GPU each rank of `comm` works on: equal texts are one GPU. Collective.
std::vector<std::string> devices_of_ranks(Communicator& comm);

// Virtual ranks: a walk on the calling thread's GPU, with the point's kernel.
std::unique_ptr<UnitWalk> make_device_walk(const PointParams& params,
                                           UnitWalk::MakeSchedule make_schedule,
                                           MemoryLedger& ledger);
// FLOP/s (4 d per pair) of the point's kernel on dense segments of 2048 rows, on the calling
// thread's GPU: the yardstick of a walk.
double measure_device_attend_rate(const PointParams& params);
// What counts as right on a GPU; `given`: check.tolerance, 0 for the default.
Tolerance device_tolerance(double given);
// Clocks, power and temperature as they are now, where NVML tells.
void record_clocks(PointRecord& record);

// Of the calling thread's GPU.
int64_t device_memory_bytes();

// Dense 16-bit peak of the tensor cores at the highest clock, of so many devices like the calling
// thread's: FLOP/s. 0 for architectures whose rate is not known here.
double device_peak_flops(int devices);

}  // namespace longnet
