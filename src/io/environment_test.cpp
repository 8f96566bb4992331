#include "io/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "io/field.h"

namespace longnet {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

template <class T>
T parsed(std::string_view text) {
  T value;
  from_json(parse_json(text, "test"), value);
  return value;
}

TEST(Environment, CapturesThisMachine) {
  const Environment e =
      capture_environment({.mpi_version = "Open MPI 4.1.4", .devices = {"device 0"}});
  EXPECT_FALSE(e.hostname.empty());
  EXPECT_GE(e.cores, 1);
  EXPECT_GE(e.threads, e.cores);
  EXPECT_GE(e.usable_threads, 1);
  EXPECT_GE(e.numa_nodes, 1);
  EXPECT_GT(e.memory_bytes, int64_t{1} << 26);
  EXPECT_GT(e.memory_limit_bytes, 0);
  EXPECT_LE(e.memory_limit_bytes, e.memory_bytes);
  EXPECT_THAT(e.kernel, HasSubstr("Linux"));
}

// The tightest group on the way to the root decides, by v2 ("max": no limit) and by v1 (2^63 - 4096
// rounded down: none).
TEST(Environment, MemoryLimitsOfBothVersionsOfCgroups) {
  const std::filesystem::path root = testing::TempDir() + "cgroup_tree";
  std::filesystem::remove_all(root);
  const auto write = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path file = root / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  };
  const auto limit = [&](const std::string& groups) {
    write("own", groups);
    return cgroup_memory_limit(root.string(), (root / "own").string());
  };
  write("memory/memory.limit_in_bytes", "9223372036854771712");
  write("memory/slurm/memory.limit_in_bytes", "8589934592");
  write("memory/slurm/job_7/memory.limit_in_bytes", "4294967296");
  write("memory/slurm/job_7/step_0/memory.limit_in_bytes", "9223372036854771712");
  write("slurm/memory.max", "2147483648");
  write("slurm/job_7/memory.max", "max");
  EXPECT_EQ(limit("4:cpu,cpuacct:/slurm\n7:memory:/slurm/job_7/step_0\n0::/none"), 4294967296);
  EXPECT_EQ(limit("7:memory:/slurm"), 8589934592);
  EXPECT_EQ(limit("7:memory:/"), 0);
  EXPECT_EQ(limit("7:memory:/docker/elsewhere/slurm"), 0);  // a host's path: no such folder here
  EXPECT_EQ(limit("0::/slurm/job_7"), 2147483648);
  EXPECT_EQ(limit("7:memory:/slurm/job_7\n0::/slurm"), 2147483648);
  EXPECT_EQ(limit("3:cpuset:/slurm"), 0);
}

TEST(Environment, RoundTrips) {
  Environment e = capture_environment({.mpi_version = "x", .devices = {"d"}});
  e.governor = "powersave";
  e.variables["OMP_NUM_THREADS"] = "2";
  e.device_software["nccl"] = "2.28.9";
  const std::string text = dump_json(to_json(e));
  EXPECT_EQ(dump_json(to_json(parsed<Environment>(text))), text);
  const std::string build = dump_json(to_json(build_info()));
  EXPECT_EQ(dump_json(to_json(parsed<BuildInfo>(build))), build);
}

TEST(Environment, OnlyListedVariables) {
  for (const char* name : {"OMP_NUM_THREADS", "OMPI_MCA_btl", "SLURM_JOB_ID", "SLURM_NNODES",
                           "CUDA_VISIBLE_DEVICES", "NCCL_P2P_DISABLE"})
    EXPECT_TRUE(environment_variable_allowed(name)) << name;
  for (const char* name : {"PATH", "HOME", "USER", "SLURM_JWT", "XOMP_NUM_THREADS", "OMP_", "",
                           "NCCL_COMM_ID", "OMPI_MCA_btl_tcp_if_include", "PBS_JOBID"})
    EXPECT_FALSE(environment_variable_allowed(name)) << name;
}

TEST(Environment, KeepsNoAddressKeyOrSessionFolder) {
  const std::string canary = "c4n4ry";
  const std::vector<const char*> names{
      "OMPI_MCA_orte_hnp_uri",   "OMPI_MCA_orte_precondition_transports",
      "OMPI_MCA_orte_ess_jobid", "OMPI_MCA_orte_top_session_dir",
      "OMPI_MCA_btl_pwd",        "NCCL_COOKIE",
      "NCCL_PROXY_AUTH",         "NCCL_COMM_ID",
      "OMP_TOOL_LIBRARIES"};
  for (const char* name : names) setenv(name, canary.c_str(), 1);
  setenv("NCCL_IB_HCA", "mlx5_0", 1);
  setenv("NCCL_SOCKET_IFNAME", "tcp://10.1.2.3:99", 1);
  const std::string text = dump_json(to_json(capture_environment()));
  for (const char* name : names) {
    EXPECT_THAT(text, Not(HasSubstr(name)));
    unsetenv(name);
  }
  EXPECT_THAT(text, Not(HasSubstr(canary)));
  EXPECT_THAT(text, Not(HasSubstr("10.1.2.3")));
  EXPECT_THAT(text, HasSubstr("mlx5_0"));
  unsetenv("NCCL_IB_HCA");
  unsetenv("NCCL_SOCKET_IFNAME");
}

TEST(Environment, RecordsNoValueThatNamesAPlace) {
  for (const char* value :
       {"", "4", "{0:4},{4:4}", "0-3 8-11", "^mlx5_1", "tcp,self", "2.5", "1.2.3"})
    EXPECT_EQ(recorded_value(value), value);
  for (const char* value : {"192.168.0.1", "a=10.0.0.0/24", "/path/of/a/session", "user@host",
                            "fe80::1", "tcp://node:4000"})
    EXPECT_EQ(recorded_value(value), "(not recorded)") << value;
}

TEST(BuildInfo, IsFilledIn) {
  const BuildInfo b = build_info();
  EXPECT_FALSE(b.version.empty());
  EXPECT_FALSE(b.revision.empty());
  EXPECT_FALSE(b.compiler.empty());
  EXPECT_FALSE(b.build_type.empty());
}

TEST(Fitness, QuietReleaseMachineIsFit) {
  const Environment good{
      .threads = 16, .usable_threads = 16, .governor = "performance", .load_average = {0.1, 0, 0}};
  EXPECT_TRUE(fitness_warnings(good, {.build_type = "Release"}).empty());
}

TEST(Fitness, NamesEachReason) {
  const Environment bad{
      .threads = 16, .usable_threads = 2, .governor = "powersave", .load_average = {3, 2, 1}};
  const auto warnings = fitness_warnings(bad, {.build_type = "Debug", .sanitizer = "address"});
  EXPECT_THAT(warnings, Contains(HasSubstr("load average 3 on 2")));
  EXPECT_THAT(warnings, Contains(HasSubstr("governor is 'powersave'")));
  EXPECT_THAT(warnings, Contains(HasSubstr("Only 2 hardware threads are usable")));
  EXPECT_THAT(warnings, Contains(HasSubstr("2 of 16 hardware threads")));
  EXPECT_THAT(warnings, Contains(HasSubstr("Debug build")));
  EXPECT_THAT(warnings, Contains(HasSubstr("-fsanitize=address")));
}

TEST(Fitness, AMeasuredShareDecidesBeforeTheLoadOfTheLastMinute) {
  Environment env{.threads = 4, .usable_threads = 4, .load_average = {9, 9, 9}};
  EXPECT_THAT(why_busy(env), HasSubstr("load average 9 on 4"));
  env.busy_share = 0.02;  // a build has just ended
  EXPECT_EQ(why_busy(env), "");
  env.busy_share = 0.3;
  env.load_average = {0, 0, 0};
  EXPECT_EQ(why_busy(env), "other programs used 30 % of 4 usable hardware threads");
  env.mpi_version = "Open MPI";
  EXPECT_EQ(why_busy(env), "other programs used 30 % of rank 0's hardware threads");
  EXPECT_THAT(fitness_warnings(env, {.build_type = "Release"}), Contains(HasSubstr("30 %")));
  EXPECT_EQ(parsed<Environment>(dump_json(to_json(env))).busy_share, 0.3);
}

}  // namespace
}  // namespace longnet
