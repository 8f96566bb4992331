// Options of all commands, as parsed from the command line.
#pragma once
#include <string>
#include <vector>

#include "io/table.h"
#include "run/cluster_sweep.h"
#include "run/recommend.h"
#include "run/sweep.h"

namespace longnet {

enum class ProgressStyle { kAuto, kPlain, kNone };
constexpr auto texts_of(ProgressStyle) { return texts("auto", "plain", "none"); }

struct Options : SweepRequest, ClusterRequest {
  std::string command_line;  // as a user would type it again
  // Common.
  bool quiet = false;
  int verbose = 0;
  ProgressStyle progress = ProgressStyle::kAuto;
  std::string color = "auto";  // auto, always, never
  TableFormat format = TableFormat::kText;
  bool wide = false;
  // run.
  std::string output;  // folder of the result
  std::string resume;
  bool allow_changed_machine = false;
  // plan.
  std::string schedule_of;  // a point's id or number
  int schedule_rank = 0;
  bool dot = false;
  // simulate.
  std::string trace;
  // recommend.
  Question question;
  int top = 10;
  // env.
  std::string json;
  bool fitness_check = false;
  // comm.
  std::string max_bytes;  // "": by the transport
  std::string comm_transport = "host";
  // validate.
  std::string real, published;
  // calibrate.
  bool quick = false;
  std::string gpu_kernels, gpu_kernel = "cuda", gpu_comm;
  // compare.
  std::string base, now, threshold = "5%";
  bool any_transport = false;
  // list: "" or one kind.
  std::string list_kind;
  // report, export.
  std::vector<std::string> result_dirs;
  std::string report_file, validation;
  bool report_compares = false;
};

// Exit codes, as every command uses them.
enum ExitCode {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnusable = 3,
  kStoppedEarly = 4,
  kRegression = 5
};

int run_env(const Options& options);
int run_plan(const Options& options);
int run_points(const Options& options);  // `run`
int run_check(const Options& options);
int run_train(const Options& options);
int run_recommend(const Options& options);
int run_validate(const Options& options);
int run_simulate(const Options& options);
int run_depth(const Options& options);
int run_comm(const Options& options);
int run_calibrate(const Options& options);
int run_compare(const Options& options);
int run_report(const Options& options);
int run_list(const Options& options);
int run_export(const Options& options);

}  // namespace longnet
