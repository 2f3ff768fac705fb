// What it costs to choose a kernel on the device, in a graph of many layers: ns a layer of each way, as JSON.
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -rdc=true launch_ways.cu -o launch_ways -lcudadevrt
// A layer is one kernel of 132 CTAs that spins for some 5 us. Beside it: a second launch that finds itself not chosen
// and leaves, as plain CTAs or as clusters of 16, before or behind, with and without programmatic dependent launch;
// a conditional SWITCH node, with a launch that sets its value in each layer and with one for all layers.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                           \
  do {                                                                                        \
    const cudaError_t error = (call);                                                         \
    if (error != cudaSuccess) {                                                               \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, cudaGetErrorString(error));             \
      std::exit(1);                                                                           \
    }                                                                                         \
  } while (0)

constexpr int kLayers = 32, kCtas = 132, kShared = 200 * 1024, kSpinNs = 5000, kReplays = 50;

// Leaves if *chosen is another number than mine; else spins. `dependent`: waits for the launch before.
template <bool dependent>
__global__ void __launch_bounds__(384, 1) work(const int* chosen, int mine, int clocks) {
  extern __shared__ char shared[];
  if constexpr (dependent) {
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
  if (*chosen != mine) return;
  const long long end = clock64() + clocks;
  while (clock64() < end) {
  }
  if (clocks < 0) shared[threadIdx.x] = 0;
}

__global__ void set_switch(cudaGraphConditionalHandle handle, const int* chosen) {
  cudaGraphSetConditional(handle, static_cast<unsigned>(*chosen));
}

struct Launch {
  cudaStream_t stream;
  const int* chosen;
  int clocks;

  void operator()(int mine, bool dependent, int cluster) const {
    const auto kernel = dependent ? work<true> : work<false>;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchAttribute attributes[2];
    int count = 0;
    if (cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    }
    if (dependent) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    const int ctas = cluster > 1 ? 16 * cluster / 2 : kCtas;  // teams: as few requests have them
    cudaLaunchConfig_t config = {};
    config.gridDim = ctas - ctas % cluster;
    config.blockDim = 384;
    config.dynamicSmemBytes = kShared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    CHECK(cudaLaunchKernelEx(&config, kernel, chosen, mine, clocks));
  }
};

// Adds a SWITCH of two bodies to the graph that the stream captures; a body is one launch.
void add_switch(const Launch& launch, bool dependent) {
  cudaStreamCaptureStatus status;
  cudaGraph_t graph;
  const cudaGraphNode_t* before;
  const cudaGraphEdgeData* edges;
  std::size_t count;
  CHECK(cudaStreamGetCaptureInfo(launch.stream, &status, nullptr, &graph, &before, &edges, &count));
  cudaGraphConditionalHandle handle;
  CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 0, cudaGraphCondAssignDefault));
  set_switch<<<1, 1, 0, launch.stream>>>(handle, launch.chosen);
  CHECK(cudaStreamGetCaptureInfo(launch.stream, &status, nullptr, &graph, &before, &edges, &count));
  cudaGraphNodeParams parameters = {};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = handle;
  parameters.conditional.type = cudaGraphCondTypeSwitch;
  parameters.conditional.size = 2;
  cudaGraphNode_t node;
  CHECK(cudaGraphAddNode(&node, graph, before, edges, count, &parameters));
  for (int body = 0; body < 2; ++body) {
    cudaStream_t inner;
    CHECK(cudaStreamCreateWithFlags(&inner, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCaptureToGraph(inner, parameters.conditional.phGraph_out[body], nullptr, nullptr, 0,
                                        cudaStreamCaptureModeRelaxed));
    Launch{inner, launch.chosen, launch.clocks}(body, dependent, body == 1 ? 16 : 1);
    cudaGraph_t same;
    CHECK(cudaStreamEndCapture(inner, &same));
    CHECK(cudaStreamDestroy(inner));
  }
  CHECK(cudaStreamUpdateCaptureDependencies(launch.stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies));
}

template <class Layer>
void time(const char* name, const Launch& launch, Layer layer, bool last = false) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(launch.stream, cudaStreamCaptureModeRelaxed));
  for (int i = 0; i < kLayers; ++i) layer();
  CHECK(cudaStreamEndCapture(launch.stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<float> times;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < kReplays; ++i) {
    CHECK(cudaEventRecord(begin, launch.stream));
    CHECK(cudaGraphLaunch(exec, launch.stream));
    CHECK(cudaEventRecord(end, launch.stream));
    CHECK(cudaStreamSynchronize(launch.stream));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  std::printf("  {\"way\": \"%s\", \"ns_a_layer\": %.0f}%s\n", name, times[times.size() / 2] * 1e6 / kLayers,
              last ? "" : ",");
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
}

int main() {
  int* chosen;
  CHECK(cudaMalloc(&chosen, sizeof(int)));
  CHECK(cudaMemset(chosen, 0, sizeof(int)));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  int driver;
  CHECK(cudaDriverGetVersion(&driver));
  const Launch launch{stream, chosen, kSpinNs * 17 / 10};
  std::printf("{\"gpu\": \"%s\", \"driver\": %d, \"layers\": %d, \"results\": [\n", properties.name, driver, kLayers);
  time("one launch", launch, [&] { launch(0, false, 1); });
  time("one launch, dependent", launch, [&] { launch(0, true, 1); });
  for (const int cluster : {1, 16}) {
    char name[96];
    const char* kind = cluster == 1 ? "CTAs" : "clusters of 16";
    for (const bool dependent : {false, true}) {
      std::snprintf(name, sizeof(name), "leaving behind, %s%s", kind, dependent ? ", dependent" : "");
      time(name, launch, [&] {
        launch(0, dependent, 1);
        launch(1, dependent, cluster);
      });
      std::snprintf(name, sizeof(name), "leaving before, %s%s", kind, dependent ? ", dependent" : "");
      time(name, launch, [&] {
        launch(1, dependent, cluster);
        launch(0, dependent, 1);
      });
    }
  }
  time("switch, set in each layer", launch, [&] { add_switch(launch, false); });
  time("switch, set in each layer, dependent bodies", launch, [&] { add_switch(launch, true); }, true);
  std::printf("]}\n");
  return 0;
}
