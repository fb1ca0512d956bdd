// report.html: a run, or several beside each other, as one page without scripts and without a
// network; and the same of one run as text for a terminal.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "trireme/report/run_history.hpp"

namespace trireme::report {

inline constexpr const char* page_name = "report.html";
inline constexpr const char* page_mark = "<footer>Written by Trireme at ";  // in every page

struct ShownRun {
  const RunHistory* run = nullptr;
  RunState state;
};

// The page. `file`: where it is going to be, for its links. Local.
std::string page_of(std::span<const ShownRun> runs, const std::filesystem::path& file);

// How the run stands, in lines of at most `columns` characters. Local.
std::string status_text(const ShownRun& shown, int columns);

// "about 12 min left"; "" where it is not known or nothing is left.
std::string time_left(const RunHistory& run);

}  // namespace trireme::report
