// Texts in the form that Slurm 22.05 and OpenPBS 23.06 print, environments as the launchers set
// them.
#include "trireme/job/facts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <map>

namespace trireme::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Environment from(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

// Answers every question alike and counts them.
struct Oracle {
  base::CommandResult answer;
  std::vector<std::vector<std::string>> questions;
  Ask ask() {
    return [this](const std::vector<std::string>& command) {
      questions.push_back(command);
      return answer;
    };
  }
};

constexpr const char* qstat_text =
    "Job Id: 12.n1\n"
    "    Job_Name = ppo_70b\n"
    "    Job_Owner = root@n1\n"
    "    resources_used.cpupercent = 0\n"
    "    resources_used.walltime = 00:00:08\n"
    "    job_state = R\n"
    "    exec_vnode = (n1:ncpus=1)\n"
    "    Resource_List.ncpus = 1\n"
    "    Resource_List.nodect = 1\n"
    "    Resource_List.walltime = 00:10:00\n"
    "    stime = Sat Nov 21 17:00:00 2026\n"
    "    session_id = 3741\n"
    "    Variable_List = PBS_O_HOME=/root,PBS_O_LOGNAME=root,\n"
    "\tPBS_O_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin,PB\n"
    "\tS_O_WORKDIR=/tmp/w\n"
    "    comment = Job run at Sat Nov 21 at 17:00 on (n1:ncpus=1)\n"
    "    etime = Sat Nov 21 16:59:58 2026\n"
    "    run_count = 2\n"
    "    Submit_arguments = job.sh\n";

double local_epoch(int hour, int minute, int second) {
  std::tm time{};
  time.tm_year = 126, time.tm_mon = 10, time.tm_mday = 21;
  time.tm_hour = hour, time.tm_min = minute, time.tm_sec = second, time.tm_isdst = -1;
  return static_cast<double>(std::mktime(&time));
}

TEST(JobTimes, SlurmForms) {
  EXPECT_EQ(parse_slurm_time("1-12:00:00\n"), 129600);
  EXPECT_EQ(parse_slurm_time("2:03:04"), 7384);
  EXPECT_EQ(parse_slurm_time("5:30"), 330);
  EXPECT_EQ(parse_slurm_time("45"), 45);
  for (const char* none : {"UNLIMITED", "NOT_SET", "INVALID", "", "1:2:3:4", "-5", "1-", "a:b"})
    EXPECT_FALSE(parse_slurm_time(none)) << none;
}

TEST(JobTimes, PbsForms) {
  EXPECT_EQ(parse_pbs_time("00:10:00"), 600);
  EXPECT_EQ(parse_pbs_time("100:00:00"), 360000);
  EXPECT_EQ(parse_pbs_time("90"), 90);
  EXPECT_FALSE(parse_pbs_time(""));
  EXPECT_FALSE(parse_pbs_time("soon"));
}

TEST(Slurm, EndTimeComesFromTheEnvironmentWhereItIs) {
  Oracle oracle;
  const auto job = read_job(from({{"SLURM_JOB_ID", "4711"},
                                  {"SLURM_JOB_NAME", "ppo"},
                                  {"SLURM_JOB_END_TIME", "1000600"},
                                  {"SLURM_JOB_NUM_NODES", "4"},
                                  {"SLURM_JOB_NODELIST", "n[001-004]"}}),
                            oracle.ask(), 1000000);
  EXPECT_TRUE(oracle.questions.empty());
  EXPECT_EQ(job.seconds_left, 600);
  EXPECT_EQ(job.restarts, 0) << "SLURM_RESTART_COUNT is unset on the first run";
  EXPECT_EQ(describe(job), "slurm 4711 (ppo), first start, 4 nodes n[001-004]");
  EXPECT_THAT(job.sources, testing::Contains("end: SLURM_JOB_END_TIME"));
}

TEST(Slurm, ElseSqueueIsAskedOnce) {
  Oracle oracle{{true, 0, "11:58:30\n"}, {}};
  const auto job =
      read_job(from({{"SLURM_JOB_ID", "4711"}, {"SLURM_RESTART_COUNT", "2"}}), oracle.ask(), 0);
  EXPECT_THAT(oracle.questions, ElementsAre(ElementsAre("squeue", "-h", "-j", "4711", "-o", "%L")));
  EXPECT_EQ(job.seconds_left, 11 * 3600 + 58 * 60 + 30);
  EXPECT_EQ(job.restarts, 2);
}

TEST(Slurm, ArraysAndSilence) {
  Oracle silent{{false, 0, ""}, {}};
  const auto job = read_job(
      from(
          {{"SLURM_JOB_ID", "4714"}, {"SLURM_ARRAY_JOB_ID", "4711"}, {"SLURM_ARRAY_TASK_ID", "3"}}),
      silent.ask(), 0);
  EXPECT_EQ(job.id, "4711_3");
  EXPECT_EQ(silent.questions.at(0).at(3), "4714") << "squeue knows the task by its own number";
  EXPECT_FALSE(job.seconds_left);
  EXPECT_EQ(job.remark, "squeue gave no answer");
  Oracle unlimited{{true, 0, "UNLIMITED\n"}, {}};
  EXPECT_EQ(read_job(from({{"SLURM_JOB_ID", "4714"}}), unlimited.ask(), 0).remark,
            "squeue says: UNLIMITED");
}

TEST(Slurm, WhatIsNoJobNumberDoesNotReachACommandLine) {
  Oracle oracle{{true, 0, "1:00"}, {}};
  read_job(from({{"SLURM_JOB_ID", "47;rm -rf $HOME"}}), oracle.ask(), 0);
  EXPECT_EQ(oracle.questions.at(0).at(3), "47rm-rfHOME");
}

TEST(Pbs, QstatIsAskedOnce) {
  Oracle oracle{{true, 0, qstat_text}, {}};
  const auto job = read_job(from({{"PBS_JOBID", "12.n1"}, {"PBS_JOBNAME", "ppo_70b"}}),
                            oracle.ask(), local_epoch(17, 2, 0));
  EXPECT_THAT(oracle.questions, ElementsAre(ElementsAre("qstat", "-f", "12.n1")));
  EXPECT_EQ(job.seconds_left, 480) << "by the start, since resources_used lags behind";
  EXPECT_EQ(job.restarts, 1);
  EXPECT_EQ(describe(job), "pbs 12.n1 (ppo_70b), restart 1");
}

TEST(Pbs, AttributesOfLongLines) {
  EXPECT_EQ(pbs_attribute(qstat_text, "session_id"), "3741");
  EXPECT_THAT(pbs_attribute(qstat_text, "Variable_List"), HasSubstr("/bin,PBS_O_WORKDIR=/tmp/w"));
  EXPECT_EQ(pbs_attribute(qstat_text, "walltime"), "")
      << "Resource_List.walltime is another attribute";
}

TEST(Pbs, WithoutAStartTheUsedTimeCounts) {
  std::string text = qstat_text;
  text.erase(text.find("    stime"), text.find("    session_id") - text.find("    stime"));
  EXPECT_EQ(pbs_seconds_left(text, 0), 592);
  EXPECT_FALSE(pbs_seconds_left("    stime = Sat Nov 21 17:00:00 2026\n", 0))
      << "no walltime was asked for";
}

TEST(Pbs, ArrayTasksAndSilence) {
  Oracle silent{{true, 35, "qstat: Unknown Job Id 12[3].n1"}, {}};
  const auto job = read_job(from({{"PBS_JOBID", "12[3].n1"}}), silent.ask(), 0);
  EXPECT_EQ(job.id, "12[3].n1");
  EXPECT_EQ(job.remark, "qstat says: qstat: Unknown Job Id 12[3].n1");
}

TEST(Pbs, NodeFileHasALinePerProcess) {
  EXPECT_THAT(pbs_nodes("n1\nn1\nn2\n\nn2\n"), ElementsAre("n1", "n2"));
}

TEST(Job, Labels) {
  EXPECT_EQ(job_label(from({})), "");
  EXPECT_EQ(job_label(from({{"SLURM_JOB_ID", "7"}})), "slurm 7");
  EXPECT_EQ(job_label(from({{"SLURM_JOB_ID", "7"}, {"SLURM_RESTART_COUNT", "1"}})),
            "slurm 7 restart 1");
  EXPECT_EQ(job_label(from({{"PBS_JOBID", "12[3].n1"}})), "pbs 12[3].n1");
  EXPECT_EQ(describe(read_job(from({}), {}, 0)), "no batch system");
}

TEST(Launch, EveryLauncher) {
  const auto text = [](Variables variables) {
    return describe(read_launch(from(std::move(variables))));
  };
  EXPECT_EQ(text({}), "started without a launcher");
  EXPECT_EQ(text({{"OMPI_COMM_WORLD_RANK", "3"},
                  {"OMPI_COMM_WORLD_SIZE", "8"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_STEP_NUM_TASKS", "2"},
                  {"PMIX_RANK", "3"}}),
            "Open MPI: rank 3 of 8, local rank 1 of 4 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, "
            "OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE)");
  EXPECT_EQ(text({{"PALS_RANKID", "9"},
                  {"PALS_LOCAL_RANKID", "1"},
                  {"PMI_RANK", "9"},
                  {"PMI_SIZE", "16"},
                  {"PMI_LOCAL_SIZE", "8"}}),
            "PALS: rank 9 of 16, local rank 1 of 8 (PALS_RANKID, PMI_SIZE, PALS_LOCAL_RANKID, "
            "PMI_LOCAL_SIZE)");
  EXPECT_EQ(text({{"SLURM_PROCID", "5"},
                  {"SLURM_STEP_NUM_TASKS", "8"},
                  {"SLURM_LOCALID", "1"},
                  {"PMIX_RANK", "5"}}),
            "Slurm: rank 5 of 8, local rank 1 (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID)");
  // Hydra's daemons are started by srun: SLURM_PROCID numbers them, not the ranks.
  EXPECT_EQ(text({{"PMI_RANK", "5"},
                  {"PMI_SIZE", "8"},
                  {"MPI_LOCALRANKID", "1"},
                  {"MPI_LOCALNRANKS", "4"},
                  {"SLURM_PROCID", "1"},
                  {"SLURM_STEP_NUM_TASKS", "2"}}),
            "MPICH: rank 5 of 8, local rank 1 of 4 (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, "
            "MPI_LOCALNRANKS)");
  EXPECT_THAT(text({{"I_MPI_MPIRUN", "mpirun"},
                    {"PMI_RANK", "5"},
                    {"PMI_SIZE", "8"},
                    {"MPI_LOCALRANKID", "1"},
                    {"MPI_LOCALNRANKS", "4"}}),
              HasSubstr("Intel MPI: rank 5 of 8, local rank 1 of 4"));
  EXPECT_EQ(text({{"PMIX_RANK", "2"}}), "PMIx: rank 2 (PMIX_RANK)");
  EXPECT_EQ(text({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}), "PMI: rank 2 of 4 (PMI_RANK, PMI_SIZE)");
  EXPECT_EQ(read_launch(from({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}})).launcher, "")
      << "a batch script's own shell";
}

// ---- what schedulers write on a bad day ----

TEST(JobTimes, EdgesOfTheForms) {
  for (const char* zero : {"0", "0:00", "00:00:00", "0-00:00:00"})
    EXPECT_EQ(parse_slurm_time(zero), 0) << zero;
  EXPECT_EQ(parse_slurm_time("365-00:00:00"), 31536000);
  EXPECT_EQ(parse_slurm_time("  1:00 \r\n"), 60);
  EXPECT_EQ(parse_pbs_time("9999:59:59"), 35999999);
  for (const char* none : {"99999999999", "1:-5", ":", "1:", ":1", "1::2", "+5", "0x10", "1.5",
                           "1 2", "1-2-3", "--1"}) {
    EXPECT_FALSE(parse_slurm_time(none)) << none;
    EXPECT_FALSE(parse_pbs_time(none)) << none;
  }
  EXPECT_FALSE(parse_pbs_time("1-00:00:00")) << "PBS has no days";
}

TEST(Slurm, AnEndTimeThatIsNoNumberIsAskedFor) {
  Oracle oracle{{true, 0, "10:00\n"}, {}};
  const auto job =
      read_job(from({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", "Unknown"}}), oracle.ask(), 0);
  EXPECT_EQ(job.seconds_left, 600);
  EXPECT_THAT(job.sources, testing::Contains("end: squeue -o %L"));
}

// Variables of a job that is over, in a shell that it has left behind; or the limit was extended.
TEST(Slurm, AnEndInThePastIsNotThisJobs) {
  Oracle gone{{true, 1, "slurm_load_jobs error: Invalid job id specified"}, {}};
  const auto stale =
      read_job(from({{"SLURM_JOB_ID", "123"}, {"SLURM_JOB_END_TIME", "1000"}}), gone.ask(), 1.7e9);
  EXPECT_FALSE(stale.seconds_left);
  EXPECT_THAT(stale.doubt, testing::HasSubstr("SLURM_JOB_END_TIME = 1000 is"));
  EXPECT_THAT(stale.doubt, testing::HasSubstr("in the past"));
  EXPECT_THAT(stale.remark, testing::HasSubstr("Invalid job id"));
  Oracle extended{{true, 0, "2:00:00"}, {}};
  const auto longer =
      read_job(from({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", "100"}}), extended.ask(), 160);
  EXPECT_EQ(longer.seconds_left, 7200);
  EXPECT_THAT(longer.sources, testing::Contains("end: squeue -o %L"));
  Oracle over{{true, 0, "0:00"}, {}};
  EXPECT_EQ(read_job(from({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", "100"}}), over.ask(), 160)
                .seconds_left,
            0)
      << "squeue knows that it is really ending";
}

TEST(Slurm, AnEndThatIsNearCounts) {
  Oracle oracle;
  const auto job =
      read_job(from({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", "101"}}), oracle.ask(), 100);
  EXPECT_EQ(job.seconds_left, 1);
  EXPECT_EQ(job.doubt, "");
  EXPECT_TRUE(oracle.questions.empty());
}

TEST(Slurm, AnEndThatIsNoTimeIsIgnoredWithAWarning) {
  for (const char* garbage : {"tomorrow", "1e9", "1700000600.5", "-5", "1700000600000",
                              "4294967294", "99999999999999999999", " 1700000600"}) {
    Oracle oracle{{true, 0, "10:00\n"}, {}};
    const auto job = read_job(from({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", garbage}}),
                              oracle.ask(), 1.7e9);
    EXPECT_EQ(job.seconds_left, 600) << garbage;
    EXPECT_THAT(job.doubt, testing::HasSubstr("ignored")) << garbage;
  }
  Oracle oracle;
  EXPECT_EQ(read_job(from({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", "2147483648"}}),
                     oracle.ask(), 2147483640)
                .seconds_left,
            8)
      << "after 2038";
}

TEST(Pbs, AnEndInThePastIsNotThisJobs) {
  const auto of = [](const std::string& attributes) {
    Oracle oracle{{true, 0, "Job Id: 12.n1\n" + attributes}, {}};
    return read_job(from({{"PBS_JOBID", "12.n1"}}), oracle.ask(), local_epoch(17, 2, 0));
  };
  const std::string over =
      "    stime = Sat Nov 21 12:00:00 2026\n    Resource_List.walltime = 01:00:00\n";
  const auto stale = of(over);
  EXPECT_FALSE(stale.seconds_left);
  EXPECT_THAT(stale.doubt, testing::HasSubstr("ended 4 h 2 min ago"));
  EXPECT_EQ(of(over + "    resources_used.walltime = 00:20:00\n").seconds_left, 2400)
      << "the server's clock is in another time zone";
  EXPECT_FALSE(of(over + "    resources_used.walltime = 01:00:10\n").seconds_left);
}

TEST(Slurm, RemarksOfACommandThatFails) {
  const auto remark = [](base::CommandResult answer) {
    Oracle oracle{std::move(answer), {}};
    return read_job(from({{"SLURM_JOB_ID", "7"}}), oracle.ask(), 0).remark;
  };
  EXPECT_EQ(remark({true, 1, "slurm_load_jobs error: Invalid job id specified\n"}),
            "squeue says: slurm_load_jobs error: Invalid job id specified");
  EXPECT_EQ(remark({true, 127, "sh: squeue: not found"}), "squeue gave no answer");
  EXPECT_EQ(remark({true, 0, ""}), "squeue says: ") << "a job that squeue has forgotten";
}

TEST(Pbs, RestartsAndLimitsThatAreNotThere) {
  const auto of = [](const std::string& attributes) {
    Oracle oracle{{true, 0, "Job Id: 12.n1\n" + attributes}, {}};
    return read_job(from({{"PBS_JOBID", "12.n1"}}), oracle.ask(), local_epoch(17, 2, 0));
  };
  EXPECT_EQ(of("    run_count = 1\n").restarts, 0);
  EXPECT_EQ(of("    run_count = 0\n").restarts, 0);
  EXPECT_EQ(of("    run_count = many\n").restarts, 0);
  EXPECT_EQ(of("").remark, "qstat -f names no walltime");
  EXPECT_FALSE(of("    Resource_List.walltime = 01:00:00\n").seconds_left)
      << "neither started nor used: nobody knows";
  EXPECT_EQ(of("    Resource_List.walltime = 01:00:00\n    stime = yesterday\n    "
               "resources_used.walltime = 00:20:00\n")
                .seconds_left,
            2400);
  EXPECT_EQ(of("    stime = Sat Nov 21 17:00:00 2026\n    Resource_List.walltime = 01:00:00")
                .seconds_left,
            3480)
      << "no newline at the end";
}

TEST(Pbs, ASilentQstatLeavesTheRest) {
  Oracle silent{{false, 0, ""}, {}};
  const auto job = read_job(from({{"PBS_JOBID", "12.n1"}, {"PBS_NODEFILE", "/nonexistent/nodes"}}),
                            silent.ask(), 0);
  EXPECT_EQ(job.remark, "qstat gave no answer");
  EXPECT_EQ(job.nodes, 0);
  EXPECT_EQ(describe(job), "pbs 12.n1, first start");
}

TEST(Pbs, NodeFilesWithBlanksAndRepeats) {
  EXPECT_THAT(pbs_nodes("n1\nn1\n\n  n2 \r\nn1\nn3"), ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(pbs_nodes(""), testing::IsEmpty());
}

TEST(Job, NumbersAreCutToWhatACommandLineMayHave) {
  EXPECT_EQ(sane_job("12[3].server-1_x"), "12[3].server-1_x");
  EXPECT_EQ(sane_job("$(reboot) `x` \n;&|<>'\"\\/"), "rebootx");
  EXPECT_EQ(sane_job(std::string(1000, '7')).size(), 100u);
  EXPECT_EQ(job_label(from({{"SLURM_JOB_ID", ";;;"}})), "");
}

TEST(Launch, NumbersThatAreNoneDoNotCount) {
  EXPECT_TRUE(speaks_for_job(from({}))) << "without a launcher";
  EXPECT_TRUE(speaks_for_job(from({{"PMIX_RANK", "0"}})));
  EXPECT_FALSE(speaks_for_job(from({{"PMIX_RANK", "3"}})));
  EXPECT_EQ(read_launch(from({{"PMI_RANK", "first"}, {"PMI_SIZE", "4"}})).launcher, "");
  const auto facts =
      read_launch(from({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "many"}}));
  EXPECT_EQ(facts.rank, 2);
  EXPECT_EQ(facts.size, 0);
  EXPECT_EQ(facts.local_rank, -1);
}

}  // namespace
}  // namespace trireme::job
