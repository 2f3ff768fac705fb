// Links the installed library and asks it about itself.
#include <flashlatent/flashlatent.h>

#include <cstdio>

int main() {
  namespace fl = flashlatent;
  const fl::Status cpu = fl::available(fl::Backend::kCpu);
  if (!cpu.ok()) {
    std::fprintf(stderr, "%s\n", cpu.message().c_str());
    return 1;
  }
  fl::DecodeProblem problem;
  problem.query.heads = 0;
  const fl::Status refused = fl::validate(problem);
  std::printf("FlashLatent %s: %zu kernels; h_q 0: %s\n", FLASHLATENT_VERSION, fl::kernels().size(),
              refused.message().c_str());
  return fl::kernels().empty() || refused.ok() ? 1 : 0;
}
