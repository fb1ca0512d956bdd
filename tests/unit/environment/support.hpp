// Environments of short Python programs.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/environment/environments.hpp"

namespace trireme::test {

class EnvironmentTest : public testing::Test {
 protected:
  EnvironmentTest() {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::temp_directory_path() /
              base::text("trireme-environment-", name, "-", ::getpid());
    std::filesystem::create_directories(folder_);
    options_.environment.timeout.seconds = 120;
  }
  ~EnvironmentTest() override { std::filesystem::remove_all(folder_); }

  // `on_request` is the body of a loop in which `r` is a request; say(...) answers it, or another
  // one of which `of` is the request.
  void program(const std::string& on_request, const std::string& at_start = "") {
    const std::filesystem::path file = folder_ / "program.py";
    std::ofstream out(file);
    out << "import json, os, signal, sys\n"
           "def say(of=None, **fields):\n"
           "    print(json.dumps({'id': (of or r)['id'], **fields}), flush=True)\n"
           "folder = "
        << "'" << folder_.string() << "'\n"
        << "def first_time(name):\n"
           "    path = os.path.join(folder, name)\n"
           "    if os.path.exists(path): return False\n"
           "    open(path, 'w').close()\n"
           "    return True\n"
        << at_start << "\nfor line in sys.stdin:\n    r = json.loads(line)\n";
    std::string indented = "    ";
    for (const char c : on_request) {
      indented += c;
      if (c == '\n') indented += "    ";
    }
    out << indented << "\n";
    options_.environment.command = {"python3", "-S", "-E", file.string()};
  }

  environment::Environments start() const { return {options_, folder_, 0}; }

  static environment::Reset reset(uint64_t episode) {
    environment::Reset out;
    out.episode = episode;
    out.prompt = "p";
    out.messages = {{"user", "p", ""}};
    out.seed = 1000 + episode;
    out.where = base::text("data.jsonl:", episode);
    return out;
  }
  static environment::Step step(uint64_t episode, int64_t turn, std::string text = "t") {
    environment::Step out;
    out.episode = episode;
    out.turn = turn;
    out.text = std::move(text);
    return out;
  }

  // The next `count` replies, by episode.
  static std::vector<environment::Reply> replies(environment::Environments& environments,
                                                 size_t count) {
    std::vector<environment::Reply> out;
    const base::Stopwatch watch;
    while (out.size() < count) {
      std::ranges::move(environments.poll(), std::back_inserter(out));
      if (watch.seconds() > 100) {
        ADD_FAILURE() << "only " << out.size() << " of " << count << " replies";
        out.resize(count);
      }
      if (out.size() < count) ::usleep(500);
    }
    EXPECT_EQ(out.size(), count);
    std::ranges::stable_sort(out, {}, &environment::Reply::episode);
    return out;
  }
  static environment::Reply reply(environment::Environments& environments) {
    return replies(environments, 1).front();
  }
  // A reset, answered.
  static environment::Reply begin(environment::Environments& environments, uint64_t episode) {
    environments.reset(reset(episode));
    return reply(environments);
  }
  static environment::Reply play(environment::Environments& environments, uint64_t episode,
                                 int64_t turn, std::string text = "t") {
    environments.step(step(episode, turn, std::move(text)));
    return reply(environments);
  }
  // The lines of a file that the program writes, once there are `count` of them.
  std::vector<std::string> lines_of(const std::string& name, size_t count,
                                    environment::Environments& environments) const {
    std::vector<std::string> lines;
    for (int i = 0; i < 20'000 && lines.size() < count; ++i, ::usleep(500)) {
      environments.poll();
      lines.clear();
      std::ifstream in(folder_ / name);
      for (std::string line; std::getline(in, line) && !in.eof();) lines.push_back(line);
    }
    return lines;
  }

  std::filesystem::path folder_;
  config::Options options_;
};

}  // namespace trireme::test
