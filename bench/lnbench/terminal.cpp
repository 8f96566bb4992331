#include "lnbench/terminal.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "comm/mpi/mpi_world.h"
#include "core/check.h"
#include "io/units.h"

namespace longnet {
namespace {

// Open MPI gives its processes a pseudo-terminal even when mpirun's own output goes to a file.
bool is_terminal(int file_descriptor) {
  const char* const kind = std::getenv("TERM");
  return !launched_world_size() && isatty(file_descriptor) != 0 &&
         (kind == nullptr || std::string_view(kind) != "dumb");
}

std::string number(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  std::ostringstream out;
  out << std::setprecision(digits) << value;
  return out.str();
}

std::string result_row(const PointRecord& r) {
  const PointParams& p = r.params;
  // Counted and predicted are equal where both are known, or the point has failed.
  const auto bytes =
      r.comm.bytes_per_rank() ? r.comm.bytes_per_rank() : r.comm.predicted_bytes_per_rank;
  std::string options = options_text(p);
  if (const size_t changes = p.cluster.find(' '); changes != std::string::npos)
    options += (options.empty() ? "" : " ") + p.cluster.substr(changes + 1);
  std::string row =
      table_row(kResultHeader,
                {r.id, std::string(to_string(r.status)), p.algorithm, concat(p.ranks),
                 concat(p.problem.seq_len), concat(p.problem.batch), number(r.timing.median_s, 5),
                 number(r.timing.ci_low_s, 5), number(r.timing.ci_high_s, 5),
                 concat(r.timing.samples_s.size()), number(r.work.flops_per_s / 1e9, 4),
                 number(r.work.share_of_peak, 3), bytes ? concat(*bytes) : "-",
                 number(r.check.rel_l2_error, 2), options.empty() ? "-" : options});
  if (r.source == Source::kExtrapolated) row += " # extrapolated";
  if (const auto share = r.metrics.find("measured_share");
      r.source == Source::kExtrapolated && share != r.metrics.end())
    row += concat(" from ", number(100 * share->second, share->second < 0.1 ? 2 : 3), " %");
  if (r.source == Source::kReplayed) row += " # replayed";
  if (r.check.strata_left_out > 0)
    row += concat(" # ", r.check.strata_left_out, " of ", r.check.strata,
                  " strata beyond check.max_queries");
  if (std::abs(r.memory.resident_difference) > kNotedResidentDifference)
    row += concat(" # resident memory grew by ",
                  format_bytes(double(r.memory.resident_growth_bytes.value_or(0))), ", ",
                  number(100 * std::abs(r.memory.resident_difference), 3), " % ",
                  r.memory.resident_difference > 0 ? "more" : "less", " than the buffers");
  return r.reason.empty() ? row : concat(row, " # ", r.reason);
}

}  // namespace

std::filesystem::path program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

void write_file(const std::filesystem::path& path, const std::string& text, std::string_view hint) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw UsageError(concat("cannot write ", path.string(), hint));
}

bool use_color(const Options& options, int file_descriptor) {
  if (options.color == "always") return true;
  if (options.color == "never" || std::getenv("NO_COLOR") != nullptr) return false;
  return is_terminal(file_descriptor);
}

void print_notes(const Options& options, const Config& config) {
  if (options.quiet || launched_rank() != 0) return;
  for (const std::string& note : replaced_choices(config, known_names()))
    std::cerr << "note: " << note << "\n";
}

RunInfo run_info(const Config& config, const Options& options, size_t points) {
  return {.name = config.name,
          .description = config.description,
          .command = options.command_line,
          .config_path = config.path,
          .config_sha256 = config_sha256(config),
          .planned = int64_t(points),
          .filter = options.filter,
          .config = parse_json(resolved_config_json(config), "config")};
}

void print_summary(const Summary& summary, std::string_view remark, const std::string& directory) {
  std::cout << "#";
  for (const auto& [status, count] : summary.counts)
    if (count > 0) std::cout << " " << count << " " << status;
  std::cout << remark << "; verdict: " << summary.verdict << "\n";
  for (const auto& [id, why] : summary.disturbed)
    std::cout << "# disturbed, decides no claim about time: " << id << ": " << why << "\n";
  std::cout << "# result: " << directory << "\n" << std::flush;
}

Progress::Progress(const Options& options, bool is_root, int points)
    : enabled_(is_root && !options.quiet && options.progress != ProgressStyle::kNone),
      rewrite_(options.progress == ProgressStyle::kAuto && is_terminal(STDERR_FILENO)),
      points_(points) {}

void Progress::clear() {
  if (enabled_ && rewrite_) std::cerr << "\r\x1b[K" << std::flush;
}

std::ostream& Progress::begin_line() {
  clear();
  return std::cerr << "[" << index_ << "/" << points_ << "] ";
}

void Progress::start(int index, const std::string& what, double estimated_s) {
  index_ = index;
  what_ = what;
  last_step_ = std::chrono::steady_clock::now();
  if (!enabled_ || !rewrite_) return;
  begin_line() << what;
  if (estimated_s > 0) std::cerr << "  (about " << format_seconds(estimated_s) << ")";
  std::cerr << std::flush;
}

void Progress::step(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || (!rewrite_ && now - last_step_ < std::chrono::seconds(30))) return;
  last_step_ = now;
  begin_line() << what_ << "  " << text << (rewrite_ ? "" : "\n") << std::flush;
}

void Progress::done(const std::string& outcome, double took_s, double estimated_s,
                    double estimated_left_s) {
  took_s_ += took_s;
  estimated_s_ += estimated_s;
  if (!enabled_) return;
  begin_line() << outcome;
  if (estimated_s_ > 0 && estimated_left_s > 0)
    std::cerr << "  ETA " << format_seconds(estimated_left_s * took_s_ / estimated_s_);
  std::cerr << "\n";
}

void Progress::note(const std::string& line) {
  if (!enabled_) return;
  clear();
  std::cerr << line << "\n";
}

std::string table_row(std::string_view header, const std::vector<std::string>& cells) {
  std::string row;
  size_t at = 0;  // where the column begins; "# no." is its first word
  for (const std::string& cell : cells) {
    const size_t next = header.find_first_not_of(' ', header.find(' ', std::max<size_t>(at, 2)));
    row += cell;
    if (next != std::string_view::npos)
      row += std::string(size_t(std::max(1, int(next - at) - int(cell.size()))), ' ');
    at = next;
  }
  return row;
}

std::string plan_row(int no, const PointPlan& plan) {
  const PointParams& p = plan.point.params;
  const WorldAccount& a = plan.account;
  const bool known = a.pairs > 0;
  const std::string options = options_text(p);
  return table_row(
      kPlanHeader,
      {concat(no), plan.point.id, p.algorithm, concat(p.ranks), concat(p.problem.seq_len),
       concat(p.problem.batch), known ? number(a.flops, 4) : "-",
       known ? concat(a.max_bytes_sent) : "-", known ? concat(a.max_messages_sent) : "-",
       known ? concat(plan.memory_bytes()) : "-",
       known ? number(a.balance(p.group_ranks()), 4) : "-",
       known ? number(plan.estimated_s, 3) : "-", options.empty() ? "-" : options,
       concat(to_string(plan.point.status), plan.point.reason.empty() ? "" : "  # ",
              plan.point.reason)});
}

void print_result(const PointRecord& record, bool color) {
  const char* code = record.status == PointStatus::kOk ? "32"
                     : is_failure(record.status)       ? "31"
                                                       : "33";
  const std::string row = result_row(record);
  std::cout << (color ? concat("\x1b[", code, "m", row, "\x1b[0m") : row) << "\n" << std::flush;
}

}  // namespace longnet
