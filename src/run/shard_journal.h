// The journal of a walk over virtual ranks: a line per finished unit, so that a walk of hours can
// be cut at any moment and loses at most the unit in work.
//
//   <result>/shards-9c41d07b.jsonl
//     {"journal":5,"point":"9c41d07b","plan":"128 ranks, 1 sequences at once, ...","share":1}
//     {"walk":0,"rank":0,"first_batch":0,"batches":1,"seconds":{"attend":19.8},"heads":[...],...}
//
// A line that was cut in half by a kill is dropped when the journal is opened again. Each line ends
// with a digest of what stands before it: one that was changed is refused.
//
// Sums that a unit leaves to the next one lie beside it, in two files in turn: those of the last
// line are there whatever was cut.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "execute/virtual_walk.h"
#include "io/durable_file.h"
#include "io/field.h"

namespace longnet {

struct UnitLine : UnitOutcome {
  int walk = 0;  // index of the sample
  std::string finished_utc{};
  std::map<std::string, double> seconds{};
  int64_t held_bytes = 0, resident_bytes = 0;  // peaks of the process so far
  double kernel_flops_per_s = 0;  // the attend kernel alone, after the unit; 0: not measured
  double peak_flops_per_s = 0;  // the device's, right before and right after the unit; 0: not known
  double busy_share = std::numeric_limits<double>::quiet_NaN();  // cores' time that others took
  double attended_share = 1;                                     // share of its program's FLOPs
  bool passes_poison = false;  // the check, of an output that nobody wrote; asked of a first unit
  std::string sums_sha256{};   // digest of the sums that it leaves to the next unit; "": none
  static void fields(auto& l, auto&& visit) {
    visit("walk", l.walk);
    visit("rank", l.unit.rank);
    visit("first_batch", l.unit.first_batch);
    visit("batches", l.unit.batches);
    visit("finished_utc", l.finished_utc);
    visit("seconds", l.seconds);
    visit("held_bytes", l.held_bytes);
    visit("resident_bytes", l.resident_bytes);
    visit("unit_bytes", l.unit_bytes);
    visit("slot_bytes", l.slot_bytes);
    visit("kernel_flops_per_s", l.kernel_flops_per_s);
    visit("peak_flops_per_s", l.peak_flops_per_s, {.later = true});
    visit("busy_share", l.busy_share, {.later = true});
    visit("received_bytes", l.received_bytes);
    visit("attended_share", l.attended_share);
    visit("input_digest", l.input_digest);
    visit("heads", l.heads);
    SampleErrors::fields(l.errors, visit);
    visit("passes_poison", l.passes_poison);
    visit("gradients", l.gradients, {.omit = true});
    visit("sums_sha256", l.sums_sha256, {.omit = true});
  }
};

class ShardJournal {
 public:
  // The share of its program that each run of the journal at `path` computes; `otherwise` when
  // there is none. It follows from an estimated time, which is never twice the same: who goes on
  // takes the first.
  static double share_of(const std::string& path, double otherwise);

  // Opens or creates `path`. Throws UsageError when it holds the units of another plan.
  ShardJournal(const std::string& path, const std::string& point, const std::string& plan,
               double share = 1);
  const std::vector<UnitLine>& lines() const { return lines_; }  // in the order of finishing
  // On the disk when it returns, `sums` first: what the unit leaves to the next one.
  void append(UnitLine line, std::span<const std::byte> sums = {});
  // Reads what the last unit has left. Throws UsageError when it is not there.
  void read_sums(std::span<std::byte> sums) const;

 private:
  std::string sums_path(size_t line) const { return path_ + (line % 2 ? ".sums1" : ".sums0"); }

  std::string path_;
  std::vector<UnitLine> lines_;
  std::unique_ptr<DurableFile> file_;
};

}  // namespace longnet
