// The parts of a record, each filled in one place from plain figures, whoever has them (ranks of a
// run, a walk, a simulation). A part that one assignment fills has no setter:
// record.metrics["name_unit"] = value.
#pragma once
#include <array>
#include <new>

#include "execute/gradient_check.h"
#include "pattern/dependency_depth.h"
#include "run/measure_point.h"
#include "schedule/closed_form_counts.h"

namespace longnet {

// The point is check_failed; a reason that is there stays, before this one.
void fail_check(PointRecord& record, const std::string& reason);

// Sets work and coverage. Must come before the timing, which adds the rate.
void set_work(PointRecord& record, double flops, double paper_macs, double balance);
// The work and the collectives of a plan.
void set_plan(PointRecord& record, const PointPlan& plan);
// The share of the peak is the median of the samples' own: `flops_per_s` of each and `peak`
// (FLOP/s) of the hardware beside it, 0 where it is not known. Not known above 1: what was measured
// beside the samples was slower than they are. Also records the highest peak, `highest` if all
// windows were disturbed.
void set_share_of_peak(PointRecord& record, const std::vector<double>& flops_per_s,
                       const std::vector<double>& peak, double highest = 0);
// Parts of one rank, which do not overlap: all communication is exposed.
void set_phases(PointRecord& record, double compute_s, double merge_s,
                double communication_s = kNotMeasured);
// Parts of a model's compute; the rest of it is attention's.
void set_model_phases(PointRecord& record, double gemm_s, double row_wise_s, double update_s);
// Sets the ablations and, of the phases, communication and the part of it that compute does not
// hide.
void set_ablations(PointRecord& record, const AblationsRecord& parts);
// Metrics of the pattern alone: layers until every token has heard from every other.
void set_depth(PointRecord& record, const PointParams& params, const DepthOptions& options = {});
void set_predicted_traffic(PointRecord& record, int64_t bytes, int64_t messages);
// Maxima over ranks; memory of 0 bytes: not known.
void set_closed_forms(PointRecord& record, const RankCounts& most);
// Peaks, with the parts by tag; what else `record.memory` holds stays.
void set_memory(PointRecord& record, int64_t predicted_bytes,
                const std::map<std::string, int64_t>& by_tag = {},
                std::optional<int64_t> measured_bytes = {});
// The check. The point becomes check_failed, with the figures as its reason, where the output is
// wrong, or where the check passes a poisoned output, which no op has written.
void set_check(PointRecord& record, const CheckOutcome& outcome, bool passes_poison);
// Results of a model's runs, from which set_model_check fills in the check.
struct ModelOutcome {
  // Loss in nats a token, of a layer <y, dO>: over all runs and ranks, which must agree.
  double lowest_loss = std::numeric_limits<double>::infinity(), highest_loss = -lowest_loss;
  int64_t nan_values = 0;
  bool same_gradients = true;  // every run gave the same, bit for bit
  // The gradients of a pass that has them: their norm; their norm as a training step computes it;
  // and the slope of the loss along them by a central difference, divided by the slope that they
  // predict.
  double gradient_norm = kNotMeasured, norm_of_step = kNotMeasured, slope = kNotMeasured;
  // In a random direction: the rise of the loss less the rise that the gradient predicts, as a
  // share of the rise in a typical random direction.
  double random_error = kNotMeasured;
  // With activations in bf16, instead of slope and random_error: the norm of the difference from
  // the gradients of the same point in fp32, as a share of their norm.
  double bf16_error = kNotMeasured;
  double update_error = kNotMeasured;          // a step's: from AdamW, as a share of its rate
  double loss_without_weights = kNotMeasured;  // a forward pass's alone: over ln(vocabulary)
  CheckOutcome attention{};                    // sampled rows in one layer
  double tolerance = 0;                        // 0: kSlopeTolerance, or kBf16Tolerance
};
// A gradient that is wrong by e across the true one's direction changes the slope by e^2: 2 % show.
inline constexpr double kSlopeTolerance = 5e-4;
// A component that the gradient lacks leaves the slope along it right, but puts the slope in a
// random direction off by its own size.
inline constexpr double kRandomTolerance = 1e-2;
inline constexpr double kUpdateTolerance = 1e-3;
// Rounding to 2^-9 of all activations and their gradients; of 2 to 12 layers 5e-3 to 1e-2 are seen.
inline constexpr double kBf16Tolerance = 3e-2;
void set_model_check(PointRecord& record, const ModelOutcome& outcome, bool passes_poison);
// Sets the number of runs whose output was checked, and the seconds that this took.
void set_check_cost(PointRecord& record, int64_t runs, double poison_s, double compare_s);
// The queries and keys whose gradients a point compares.
struct GradientChoice {
  const SampleChoice& queries;
  const KeyChoice& keys;
};
// Records what was found of the gradients. Fails the point where a law of conservation is broken,
// others than the chosen queries and keys were compared, or a stratum has no key although there was
// room for one, or none was chosen.
void set_gradients(PointRecord& record, const std::array<CheckOutcome, 3>& outcomes,
                   const Conservation& laws, const GradientChoice& chosen);
// Records what the check covers. Fails the point where a stratum has no checked query although the
// budget allowed one, or others than the chosen queries were `compared`.
void set_strata(PointRecord& record, const SampleChoice& choice, int64_t compared, int64_t budget);
// Fails the point where the output has not that many `rows`.
void set_content(PointRecord& record, const ContentRecord& content, int64_t rows);

// Returns the reason of a point whose allocation failed: the GPU's own message, or "the machine
// refused 12.0 GiB per rank".
std::string out_of_memory_reason(const std::bad_alloc& error, const PointPlan& plan,
                                 const std::string& of_whom);
// Growth of a process's resident memory beside what its ranks' buffers took, where that is enough
// to tell; of several processes the one that differs most stays.
void set_resident_memory(PointRecord& record, int64_t growth, int64_t held);
inline constexpr int64_t kLeastHeldToTell = int64_t{256} << 20;

// Limits of a readable timeline: larger ones are dropped, unless a simulation is asked to keep it.
inline constexpr int kTimelineOps = 64, kTimelineRanks = 8;

}  // namespace longnet
