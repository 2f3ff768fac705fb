# Skipped where there is no GPU; carried to one by the preset `carry`.
flashlatent_test(cuda_parts_test SOURCES cuda_parts_test.cu LIBS CUDA::cudart_static)
flashlatent_test(cuda_e4m3_test SOURCES cuda_e4m3_test.cu LIBS CUDA::cudart_static)
flashlatent_test(merge_step_test SOURCES merge_step_test.cu LIBS flashlatent_runtime CUDA::cudart_static)
flashlatent_test(plan_device_test LIBS flashlatent_runtime CUDA::cudart_static)
flashlatent_test(exchange_test LIBS flashlatent_runtime CUDA::cudart_static)
flashlatent_test(contracts_kernels_test LIBS flashlatent_runtime)
# Device code on the host: it needs the toolkit's headers, and no device.
flashlatent_test(ragged_walk_test LIBS CUDA::cudart_static)
flashlatent_test(row_tile_test LIBS CUDA::cudart_static)
foreach(name ragged_walk_test row_tile_test)
  target_compile_options(${name} PRIVATE -Wno-attributes -Wno-unknown-pragmas)
endforeach()
