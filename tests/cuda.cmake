flashlatent_test(cuda_parts_test SOURCES cuda_parts_test.cu LIBS CUDA::cudart_static)
